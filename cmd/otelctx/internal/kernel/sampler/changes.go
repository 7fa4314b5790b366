// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

// Change reports that a process has executed a program, published or ended.
type Change struct {
	Image Image
	// Ended reports whether the process has ended. Otherwise it has executed Image or has published.
	Ended bool
}

// ChangesConfig selects the changes to report. The zero value selects all execs, and the ends of watched
// processes.
type ChangesConfig struct {
	// Publications also reports processes that publish, if the kernel allows it. If so, only the execs of watched
	// processes are reported.
	Publications bool
	// Watched reports only the execs of watched processes.
	Watched bool
}
