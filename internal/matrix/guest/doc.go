// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// The guest command is the first and only process that a virtual machine of the matrix
// starts by itself. It mounts what tests need, runs the programs of its plan and turns
// the machine off.
package main
