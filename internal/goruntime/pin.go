// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goruntime

import _ "unsafe" // for linkname

// Pin keeps the calling goroutine on its thread until [Unpin]. Pairs of calls may be nested. The
// same goroutine must call both.
//
// The runtime's procPin increments a counter of its thread structure that disables preemption, by the
// scheduler and by signal. sync.Pool and sync/atomic are built on it. A goroutine that is not
// preempted and does not block stays on its thread. But a garbage collection, or anything else that
// stops the world, waits for pinned goroutines, so stay pinned for nanoseconds only.
//
// Only code that never blocks may run while pinned: loads, stores, atomics, raw system calls that
// do not block. Allocation is forbidden (it may have to assist the garbage collector), and so are
// locks, channels, map writes, fmt, ordinary system calls, and every function that may do one of
// these. Even os.Getenv can crash the process with "schedule: holding locks". A panic must not leave
// the pinned section.
//
// Pin returns the number of the P.
func Pin() (p int) { return procPin() }

// Unpin reverses one [Pin].
func Unpin() { procUnpin() }

// The runtime declares both linknames itself and promises to keep their signatures
// (go.dev/issue/67401), so the linker allows them. They would become unsound if pinning no longer held a
// goroutine on its thread, but then sync.Pool's per-P private slots would break too.

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
