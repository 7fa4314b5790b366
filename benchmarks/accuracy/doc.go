// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package accuracy finds out how often each carrier is right. A child process works in
// spans and outside of them, and while it burns the processor it notes itself what it
// does, in cells that no carrier has to do with. The parent stops all its threads, reads
// the cells and the carriers, compares them, and lets it go on: nothing moves between
// the two looks, so that every difference is an error of the carrier.
//
// Everything is in the tests. See README.md in the directory above.
package accuracy
