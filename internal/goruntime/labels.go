// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goruntime

import "unsafe"

// A Label is one profiler label, in the layout of runtime/pprof.
type Label struct {
	Key, Value string
}

// LabelMap has the layout of the object to which a goroutine's label pointer points, if the fact
// [LabelList] is known. If it is to be stored in a context, List must be sorted by key and must not
// have duplicates, because pprof.WithLabels relies on that. A LabelMap must not change once it is
// installed: new goroutines inherit it, and profiles may read it at any time.
//
// [SetLabels] also accepts a pointer to a larger object that begins with a LabelMap.
type LabelMap struct {
	List []Label
}

// Labels returns the label pointer of the running goroutine. It is the pointer that SetLabels or
// runtime/pprof last installed on the goroutine, or the pointer that the goroutine inherited, or
// nil. Labels does not allocate and may be called while pinned.
func Labels() unsafe.Pointer { return runtimeGetProfLabel() }

// SetLabels makes p the label pointer of the running goroutine. Goroutines that it starts
// afterwards inherit p. It does not allocate and may be called while pinned.
//
// The argument p must be nil, or have been returned by [Labels] on any goroutine, because the
// runtime's profilers convert it to a pointer to their labelMap without a check. If the fact
// [LabelList] is known, p may also point to a heap object that begins with a [LabelMap]. The
// garbage collector keeps that object alive while a goroutine or a profile refers to it.
func SetLabels(p unsafe.Pointer) { runtimeSetProfLabel(p) }

// These functions access g.labels, a pointer in a heap object. A store to it needs the garbage
// collector's write barrier. Without the barrier, a store during marking could hide the new labels
// from the collector, which would free them while the profiler reads them. The runtime's own setter
// has the barrier, and also the happens-before edge that the race detector needs.
//
// The runtime declares these linknames itself and promises to keep them (go.dev/issue/67401), so
// the linker allows them. Both functions access only this one field, so they are safe while pinned.

//go:linkname runtimeSetProfLabel runtime/pprof.runtime_setProfLabel
func runtimeSetProfLabel(labels unsafe.Pointer)

//go:linkname runtimeGetProfLabel runtime/pprof.runtime_getProfLabel
func runtimeGetProfLabel() unsafe.Pointer
