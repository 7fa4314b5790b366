// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package allocs lets otelctx record --alloc see what a service allocates:
//
//	import _ "github.com/otelctx/otelctx/spanctx/allocs"
//
// The Go runtime samples one allocation for each 512 KiB, unless the program contains no code that could read these
// samples: then the linker turns sampling off. Importing this package turns it on again with the same rate. Programs
// that use net/http/pprof or runtime.MemProfile do not need it.
//
// A sample takes about 3 µs, or longer with deep stacks, whether or not anybody records. At this rate and 1 GB/s, that is
// 0.5 % of a core. The runtime also keeps a bucket of about 500 bytes for each different stack that allocates.
//
// Programs that set runtime.MemProfileRate themselves keep their rate. To turn sampling off, do not import the package, or
// set the rate to 0 at the start of main.
package allocs

import "runtime"

// rate is the runtime's own default.
const rate = 512 * 1024

func init() { //nolint:gochecknoinits // The package exists for it.
	if runtime.MemProfileRate == 0 {
		runtime.MemProfileRate = rate
	}
}
