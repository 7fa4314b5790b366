// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

// Change is what a process has just done.
type Change struct {
	Image Image
	// Ended says that the process has ended. Else it executes this image, or publishes.
	Ended bool
}

// ChangesConfig says which changes are told: each exec, and the ends of processes that are
// watched.
type ChangesConfig struct {
	// Publications has it told when a process publishes. Where the kernel tells that, only the
	// execs of processes that are watched are told.
	Publications bool
	// Watched has only the execs of processes told that are watched.
	Watched bool
}
