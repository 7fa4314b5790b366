// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

// kernel is a kernel of Debian's.
type kernel struct {
	// name is how the command line knows it.
	name string
	// suite is the release of Debian that it is from.
	suite string
	// arch is the architecture as Debian and Go name it.
	arch string
	// image is the package that depends on the current image.
	image string
	// source is the package of the source that the kernel is built from, with the
	// configuration of the image and the options. It is empty for the image itself.
	source  string
	options []string
}

// kernels are those of the matrix, from old to new.
var kernels = []kernel{
	// Older than what recording takes: it must say so.
	{name: "5.10", suite: debian11, arch: amd64, image: image + amd64},
	{name: "6.1", suite: debian12, arch: amd64, image: image + amd64},
	{
		name: "6.12-named", suite: debian13, arch: amd64, image: image + "cloud-" + amd64,
		source: "linux-source-6.12", options: []string{optionNames},
	},
	{name: "newest", suite: debian13 + "-backports", arch: amd64, image: image + amd64},
	{name: "arm64-6.1", suite: debian12, arch: arm64, image: image + arm64},
}

// Releases of Debian.
const (
	debian11 = "bullseye"
	debian12 = "bookworm"
	debian13 = "trixie"
)

// image is what the names of the packages start with that depend on an image.
const image = "linux-image-"

// Architectures.
const (
	amd64 = "amd64"
	arm64 = "arm64"
)

// optionNames is the option for names of memory without a file.
const optionNames = "ANON_VMA_NAME"
