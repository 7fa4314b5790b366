// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goruntime

import "unsafe"

// A Label is one profiler label, in the layout of runtime/pprof.
type Label struct {
	Key, Value string
}

// LabelMap has the layout of the object that a goroutine's label pointer points to, provided that the
// fact [LabelList] is known. List must be sorted by key and have no duplicates, because runtime/pprof
// relies on that. A LabelMap must not change once it is installed: goroutines started in the meantime
// share it, and profiles read it at any time.
//
// A larger object that begins with a LabelMap is also a valid target of [SetLabels].
type LabelMap struct {
	List []Label
}

// Labels returns the label pointer of the running goroutine: nil, the pointer that SetLabels or
// runtime/pprof last installed there, or the one that the goroutine inherited from its starter. It
// does not allocate and may be called while pinned.
func Labels() unsafe.Pointer { return runtimeGetProfLabel() }

// SetLabels makes p the label pointer of the running goroutine, which goroutines that it starts
// afterwards inherit. It does not allocate and may be called while pinned.
//
// The runtime's profilers cast p to their labelMap unchecked. So p must be nil, or the result
// of [Labels] on any goroutine. If the fact [LabelList] is known, it may also point to a heap
// object that begins with a [LabelMap]. The collector keeps that object alive for as long as a
// goroutine or a profile refers to it.
func SetLabels(p unsafe.Pointer) { runtimeSetProfLabel(p) }

// g.labels is a pointer in a heap object that the garbage collector scans, so a store to it needs the
// write barrier. A plain store during marking could hide the new labels from the collector, which would
// free them while the profiler reads them. The runtime's own setter has the barrier, and the
// happens-before edge that the race detector needs for labels in profiles. The runtime declares these
// linknames itself and promises to keep them (go.dev/issue/67401), so the linker allows them. Both
// functions only access that one field, which makes them safe while pinned.

//go:linkname runtimeSetProfLabel runtime/pprof.runtime_setProfLabel
func runtimeSetProfLabel(labels unsafe.Pointer)

//go:linkname runtimeGetProfLabel runtime/pprof.runtime_getProfLabel
func runtimeGetProfLabel() unsafe.Pointer
