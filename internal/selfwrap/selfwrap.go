// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package selfwrap detects a provider that wraps the global provider and has itself been set as the global
// provider.
package selfwrap

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
)

// globalPackages lists the packages that implement the global providers. Package otel, and package
// log/global before v1.47.0, return these providers until an SDK is set. They hold a lock while
// they delegate to the provider that is being set as the global one.
var globalPackages = []string{"go.opentelemetry.io/otel/internal/global", "go.opentelemetry.io/otel/log/internal/global"}

// Detector belongs to a wrapper of a provider. If that is the global provider, and the wrapper has been set
// as the global provider, the two would call each other forever, and the second call would deadlock on the
// lock held by the first.
type Detector struct {
	// global is the package of the wrapped provider if it is a global provider, and "" otherwise.
	global string
	report sync.Once
}

// Init is called once with the wrapped provider.
func (d *Detector) Init(wrapped any) {
	if t := reflect.TypeOf(wrapped); t.Kind() == reflect.Pointer && slices.Contains(globalPackages, t.Elem().PkgPath()) {
		d.global = t.Elem().PkgPath()
	}
}

// CalledByWrapped reports whether the wrapper is being called by the global provider that it wraps.
// If so, the wrapper must not call the global provider, and the mistake is reported once.
// CalledByWrapped walks the stack, which costs little overall: meters and loggers are rarely
// created, and few programs wrap the global provider.
func (d *Detector) CalledByWrapped(kind string) bool {
	if d.global == "" || !calledFrom(d.global+".(*") {
		return false
	}
	d.report.Do(func() {
		otel.Handle(fmt.Errorf("scopedattr: the global %[1]s is set to a provider that wraps the global %[1]s: wrap the SDK's provider; until then nothing is exported", kind))
	})
	return true
}

// calledFrom reports whether a function on the stack has a name with this prefix. It examines the
// 32 innermost frames.
func calledFrom(prefix string) bool {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		if strings.HasPrefix(frame.Function, prefix) {
			return true
		}
		if !more {
			return false
		}
	}
}
