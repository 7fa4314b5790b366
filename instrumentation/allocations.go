// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"runtime"

	"github.com/otelctx/otelctx/internal/environment"
)

// init makes the runtime sample allocations at its own default rate, as the import of spanctx/allocs does, if the operator
// wants it. A program that samples them anyway, or has another rate, keeps it.
func init() { //nolint:gochecknoinits // The runtime demands that the rate changes as early as possible.
	if runtime.MemProfileRate == 0 && environment.AllocationSampling.Bool() {
		runtime.MemProfileRate = 512 * 1024
	}
}
