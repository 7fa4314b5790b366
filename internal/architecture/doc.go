// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package architecture tests which modules each package may link, where unsafe, assembly, C,
// linknames and memory system calls are allowed, how the modules refer to each other, and what the
// workflows may run.
//
// The tables in this package are the only place where these rules are written down. Changing a
// table changes the design, which the review must approve.
package architecture
