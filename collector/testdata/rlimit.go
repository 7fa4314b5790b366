// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package rlimit takes the place of the eBPF profiler's package in builds for tests, by
// go build -overlay. Upstream raises RLIMIT_MEMLOCK, which takes CAP_SYS_RESOURCE and is of
// no use since Linux 5.11, where memory of BPF is charged to control groups.
package rlimit

// MaximizeMemlock does nothing.
func MaximizeMemlock() (func(), error) { return func() {}, nil }
