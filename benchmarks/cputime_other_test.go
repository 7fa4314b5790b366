// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package benchmarks

import "time"

var started = time.Now()

// cpuTime returns the time since the process started, because this platform does not provide CPU time.
func cpuTime() time.Duration { return time.Since(started) }
