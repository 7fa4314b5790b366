// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package otelctx has the version of the module. A service uses [resourcepublisher] and [spanctx], a
// profiler [reader]. The README lists all packages.
//
// [resourcepublisher]: https://pkg.go.dev/github.com/otelctx/otelctx/resourcepublisher
// [spanctx]: https://pkg.go.dev/github.com/otelctx/otelctx/spanctx
// [reader]: https://pkg.go.dev/github.com/otelctx/otelctx/reader
package otelctx

// Version is the version of the library, the command and the Collector receiver: that of the last
// release, without the v.
const Version = "0.1.0-dev"
