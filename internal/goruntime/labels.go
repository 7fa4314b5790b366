// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goruntime

import "unsafe"

// A Label is one profiler label, laid out as runtime/pprof's own.
type Label struct {
	Key, Value string
}

// LabelMap is laid out as the object that a goroutine's label pointer points at, provided that the
// fact [LabelList] is known. List is sorted by key and has no key twice, which runtime/pprof relies
// on. Nobody may change it once it is installed: goroutines started meanwhile share it, and
// profiles read it at any time.
//
// A type that begins with a LabelMap is a valid target of [SetLabels], and may carry more behind it.
type LabelMap struct {
	List []Label
}

// Labels returns the label pointer of the running goroutine. That is nil, what SetLabels or
// runtime/pprof installed there last, or what the goroutine inherited from the one that started it.
// It does not allocate and may be called while pinned.
func Labels() unsafe.Pointer { return runtimeGetProfLabel() }

// SetLabels makes p the label pointer of the running goroutine, and so of the goroutines that it starts from now on. It
// does not allocate and may be called while pinned.
//
// The runtime's profilers cast p to their labelMap without asking. So p must be nil, or the result
// of [Labels] on any goroutine. If the fact [LabelList] is known, it may also point to a heap
// object that begins with a [LabelMap]. The collector keeps that object alive for as long as a
// goroutine or a profile refers to it.
func SetLabels(p unsafe.Pointer) { runtimeSetProfLabel(p) }

// g.labels is a pointer in a heap object that the collector scans, so a store to it needs the write
// barrier. A bare store during marking could hide the new labels from the collector. It would then
// free them while the profiler reads them. The runtime's own setter has the barrier, and the edge
// that the race detector needs to follow labels into profiles. It declares these linknames itself
// and undertakes to keep them (go.dev/issue/67401), so the linker's check admits them. Neither does
// anything but that one access, which makes them safe while pinned.

//go:linkname runtimeSetProfLabel runtime/pprof.runtime_setProfLabel
func runtimeSetProfLabel(labels unsafe.Pointer)

//go:linkname runtimeGetProfLabel runtime/pprof.runtime_getProfLabel
func runtimeGetProfLabel() unsafe.Pointer
