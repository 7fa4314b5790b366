// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package sampler samples the threads of processes from outside, without their help. A sample contains the
// thread's stack and, if the process advertises its spans, the span that the thread is in.
//
// A BPF program, sampler.bpf.c, runs in a timer interrupt on each CPU. The interrupted thread cannot
// continue meanwhile, so the program finds the thread's goroutine the way the thread itself does, and the
// goroutine does not change. A reader in another process has no such guarantee.
//
// The package needs Linux 5.10 (arm64: 5.12) with BTF, and the capabilities CAP_BPF and CAP_PERFMON. Before
// 5.11 it also needs CAP_SYS_RESOURCE, or a limit on locked memory that its maps fit into. Elsewhere [Open]
// returns an error that wraps [errors.ErrUnsupported].
//
// Other BPF programs sample allocations of Go programs for amd64, and follow what becomes of the objects. They run at
// probes that [Sampler.Probe] sets, are loaded only for them, and need Linux 5.12 and CAP_SYS_ADMIN.
//
// The package neither symbolizes stacks nor chooses the processes: callers do.
package sampler

// The object and its Go code are committed, so that building needs only the Go
// compiler. Any clang 14 produces an identical object.
//
//go:generate go tool bpf2go -no-global-types -target bpfel -tags "linux,amd64 linux,arm64" -type counts -type image -type thread -type layout -type ring -type spans -type header -type carrier -type feature -type label -type event_kind -type change -type change_kind program sampler.bpf.c -- -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
