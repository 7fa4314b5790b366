// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Each answer from memory beside where else it could come from.

func BenchmarkThreadID(b *testing.B) {
	r := calibrated(b)
	b.Run("source=memory", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.ThreadID()
		}
	})
	b.Run("source=gettid", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			unix.Gettid()
		}
	})
	b.Run("source=refused", func(b *testing.B) {
		b.ReportAllocs()
		refused := r.Without(errTest)
		for b.Loop() {
			refused.ThreadID()
		}
	})
}

func BenchmarkGoroutineID(b *testing.B) {
	r := calibrated(b)
	b.Run("source=memory", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.GoroutineID()
		}
	})
	b.Run("source=stack", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = stackGoid()
		}
	})
}

func BenchmarkSelf(b *testing.B) {
	r := calibrated(b)
	b.Run("pinned=no", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.Self()
		}
	})
	b.Run("pinned=each", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Pin()
			r.Self()
			Unpin()
		}
	})
	b.Run("pinned=only", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Pin()
			Unpin()
		}
	})
}

func BenchmarkLabels(b *testing.B) {
	calibrated(b)
	defer SetLabels(Labels())
	labels := unsafe.Pointer(new(LabelMap))
	b.Run("op=get", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Labels()
		}
	})
	b.Run("op=set", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			SetLabels(labels)
		}
	})
}

func BenchmarkCalibrate(b *testing.B) {
	b.Run("procs=all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			calibrate()
		}
	})
	b.Run("procs=1", func(b *testing.B) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		b.ReportAllocs()
		for b.Loop() {
			calibrate()
		}
	})
}
