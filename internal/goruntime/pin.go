// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goruntime

import _ "unsafe" // for linkname

// Pin keeps the calling goroutine on its thread until the goroutine calls [Unpin]. Pairs of calls
// may be nested.
//
// Pin calls the runtime's procPin, on which sync.Pool and sync/atomic are built. It disables
// preemption of the thread, both by the scheduler and by signals, and a goroutine that is not
// preempted and does not block stays on its thread. Stay pinned for nanoseconds only, because a
// garbage collection, or anything else that stops the world, waits for pinned goroutines.
//
// While pinned, only run code that never blocks: loads, stores, atomic operations, and raw system
// calls that do not block. Do not allocate, because an allocation may have to assist the garbage
// collector. Do not use locks, channels, map writes, fmt or ordinary system calls, nor any function
// that may use them: even os.Getenv can crash the process with "schedule: holding locks". Do not
// let a panic leave the pinned section.
//
// Pin returns the number of the P.
func Pin() (p int) { return procPin() }

// Unpin reverses one [Pin].
func Unpin() { procUnpin() }

// The runtime declares both linknames itself and promises to keep their signatures
// (go.dev/issue/67401), so the linker allows them. They would become unsound if pinning no longer
// kept a goroutine on its thread, but that would also break sync.Pool.

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
