// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package membarrier lets one thread pay for the memory barriers of all: where many
// write all the time and hardly ever somebody has to know what they are at, the
// writers do without, and who has to know asks the kernel, which interrupts every
// thread that runs. See membarrier(2).
package membarrier
