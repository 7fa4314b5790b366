// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package rlimit replaces the eBPF profiler's package of this name in test builds (go build
// -overlay). Upstream's package raises RLIMIT_MEMLOCK. That needs CAP_SYS_RESOURCE, but is
// pointless since Linux 5.11, where BPF memory is charged to control groups.
package rlimit

// MaximizeMemlock does nothing.
func MaximizeMemlock() (func(), error) { return func() {}, nil }
