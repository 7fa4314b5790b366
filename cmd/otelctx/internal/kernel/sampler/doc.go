// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package sampler samples the threads of processes, from outside and without their
// help. A sample says where a thread is, and in which span by what its process
// advertises.
//
// A BPF program, sampler.bpf.c, runs in a timer's interrupt on each processor. The
// thread cannot go on meanwhile, which makes the difference to reading it from another
// process. The goroutine that it runs is found where the thread itself finds it, and
// stands still.
//
// It needs Linux 5.10 (arm64: 5.12) with BTF, and the capabilities CAP_BPF and
// CAP_PERFMON. Before 5.11 it also needs CAP_SYS_RESOURCE, or as much memory that may be
// locked as its maps take. Elsewhere [Open] returns an error that wraps
// [errors.ErrUnsupported].
//
// It knows nothing of function names and profiles. Which processes are sampled is for the
// caller to say.
package sampler

// The objects and the code around them are committed, so that building takes no
// compiler but Go's. They come out the same wherever clang 14 makes them.
//
//go:generate go tool bpf2go -target amd64,arm64 -tags linux -type image -type thread -type layout -type ring -type spans -type header -type carrier -type feature -type label program sampler.bpf.c -- -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
//go:generate go tool bpf2go -target amd64,arm64 -tags linux -type change -type change_kind changes changes.bpf.c -- -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
