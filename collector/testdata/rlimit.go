// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package rlimit replaces the eBPF profiler's package rlimit in test builds (go build -overlay).
// The profiler's package raises RLIMIT_MEMLOCK, which needs CAP_SYS_RESOURCE. Raising the limit has
// been unnecessary since Linux 5.11, which charges BPF memory to control groups instead.
package rlimit

// MaximizeMemlock does nothing.
func MaximizeMemlock() (func(), error) { return func() {}, nil }
