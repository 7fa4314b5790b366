// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goruntime

import _ "unsafe" // for linkname

// Pin keeps the calling goroutine on its thread until [Unpin]. The two may be nested, and
// must be called in pairs by the same goroutine.
//
// The runtime's procPin raises a counter of its thread structure that forbids preemption, by the
// scheduler and by signal. sync.Pool and sync/atomic are built on it. A goroutine that is not
// preempted and does not ask to wait stays where it is. In return the whole process waits for it
// whenever the world is to stop, so stay for nanoseconds.
//
// Only code that can neither wait nor be asked to may run in between: loads, stores, atomics, raw
// system calls that do not block. Forbidden are allocation (it may have to assist the collector),
// locks, channels, map writes, fmt and ordinary system calls. So is every function that may do
// one of these. os.Getenv was enough to kill a process with "schedule: holding locks". A panic
// must not leave the section.
func Pin() (p int) { return procPin() }

// Unpin ends what [Pin] began.
func Unpin() { procUnpin() }

// The runtime declares both linknames itself and undertakes to keep their signatures (go.dev/issue/67401), so that the
// linker's check admits them. They would become unsound if pinning no longer held a goroutine to its thread, which
// sync.Pool's per-P private slots would not survive either.

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
