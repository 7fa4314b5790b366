// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"maps"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// compare runs a benchmark for each of several ways to do the same thing. Every result includes the
// time of a function call.
func compare(b *testing.B, ways map[string]func()) {
	b.Helper()
	for _, name := range slices.Sorted(maps.Keys(ways)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for f := ways[name]; b.Loop(); {
				f()
			}
		})
	}
}

func BenchmarkThreadID(b *testing.B) {
	r := calibrated(b)
	refused := r.Without(errTest)
	compare(b, map[string]func(){
		"source=memory":  func() { r.Self() },
		"source=gettid":  func() { unix.Gettid() },
		"source=refused": func() { refused.Self() },
	})
}

func BenchmarkGoroutineID(b *testing.B) {
	r := calibrated(b)
	compare(b, map[string]func(){
		"source=memory": func() { r.Goroutine() },
		"source=stack":  func() { _, _ = stackGoid() },
	})
}

func BenchmarkSelf(b *testing.B) {
	r := calibrated(b)
	compare(b, map[string]func(){
		"pinned=no":   func() { r.Self() },
		"pinned=each": func() { Pin(); r.Self(); Unpin() },
		"pinned=only": func() { Pin(); Unpin() },
	})
}

func BenchmarkLabels(b *testing.B) {
	calibrated(b)
	defer SetLabels(Labels())
	labels := unsafe.Pointer(new(LabelMap))
	compare(b, map[string]func(){
		"op=get": func() { Labels() },
		"op=set": func() { SetLabels(labels) },
	})
}

func BenchmarkCalibrate(b *testing.B) {
	compare(b, map[string]func(){"procs=all": func() { calibrate() }})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	compare(b, map[string]func(){"procs=1": func() { calibrate() }})
}
