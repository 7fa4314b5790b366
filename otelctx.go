// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package otelctx contains only the version of the module. A service uses [resourcepublisher] and
// [spanctx], a profiler [reader]. The README lists all packages.
//
// [resourcepublisher]: https://pkg.go.dev/github.com/otelctx/otelctx/resourcepublisher
// [spanctx]: https://pkg.go.dev/github.com/otelctx/otelctx/spanctx
// [reader]: https://pkg.go.dev/github.com/otelctx/otelctx/reader
package otelctx

// Version is this module's version without the leading v. It ends in -dev between releases. The
// library, the command and the Collector receiver share it.
const Version = "0.1.0-dev"
