// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// The matrix command runs the tests that depend on the kernel in virtual machines with
// Debian's kernels, and reports in Markdown what passed where.
//
// Each machine gets a kernel and a file system in memory. That has the test binaries of
// this work tree, and a first process that runs them (command guest). No disk, no
// network and no kernel module are needed. Processors are emulated, unless -accel says
// otherwise, so it takes no privileges on the host, and an hour or more.
//
// Kernels are fetched by apt, which checks them by Debian's signatures, into a cache.
// Debian leaves CONFIG_ANON_VMA_NAME off; the kernel that has it is built from Debian's
// source package with Debian's configuration and that option.
//
// A test may be skipped only for what its machine is known to lack: any other skip is a
// failure of the matrix.
package main
