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
	// source is the package of the source that it is built from, with the
	// configuration of the image and the options; empty for the image itself.
	source  string
	options []string
}

// kernels are those of the matrix, from old to new.
var kernels = []kernel{
	// Older than what recording takes: it must say so.
	{name: "5.10", suite: "bullseye", arch: amd64, image: "linux-image-amd64"},
	{name: "6.1", suite: "bookworm", arch: amd64, image: "linux-image-amd64"},
	{name: "6.12", suite: "trixie", arch: amd64, image: "linux-image-amd64"},
	{
		name: "6.12-named", suite: "trixie", arch: amd64, image: "linux-image-cloud-amd64",
		source: "linux-source-6.12", options: []string{"ANON_VMA_NAME"},
	},
	{name: "7.3", suite: "trixie-backports", arch: amd64, image: "linux-image-amd64"},
	{name: "arm64-6.1", suite: "bookworm", arch: arm64, image: "linux-image-arm64"},
	{name: "arm64-6.12", suite: "trixie", arch: arm64, image: "linux-image-arm64"},
}

// Architectures.
const (
	amd64 = "amd64"
	arm64 = "arm64"
)
