// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package architecture tests which modules each package may link, where unsafe, assembly, C, linknames and memory
// system calls are used, how the modules find each other, and what the workflows may run.
//
// Its tables are the only place where this is written down. A change to a table is a change of the design, and its review
// decides whether it may be.
package architecture
