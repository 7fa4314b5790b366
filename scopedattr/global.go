// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
)

// globalPackages have the providers that package otel gives out before there is an SDK, and
// package log/global before v1.47.0. They pass calls on to the provider that becomes the
// global one, with a lock held.
var globalPackages = []string{"go.opentelemetry.io/otel/internal/global", "go.opentelemetry.io/otel/log/internal/global"}

// cycle notices a provider that is wrapped around the global one and has become the global one
// itself. Each would call the other for ever, and the second call would wait for the first
// one's lock.
type cycle struct {
	// global is the package of the wrapped provider, or "" if that is not the global one.
	global string
	report sync.Once
}

func (c *cycle) init(wrapped any) {
	if t := reflect.TypeOf(wrapped); t.Kind() == reflect.Pointer && slices.Contains(globalPackages, t.Elem().PkgPath()) {
		c.global = t.Elem().PkgPath()
	}
}

// entered reports whether the global provider calls the one that wraps it. It is asked before
// each call of the wrapped provider. Calls that make meters and loggers are rare, and
// programs that wrap the global provider too, so it may look at the stack.
func (c *cycle) entered(kind string) bool {
	if c.global == "" || !calledFrom(c.global+".(*") {
		return false
	}
	c.report.Do(func() {
		otel.Handle(fmt.Errorf("scopedattr: the global %[1]s is set to a provider that wraps the global %[1]s: wrap the SDK's provider; until then nothing is exported", kind))
	})
	return true
}

// calledFrom reports whether a function whose name begins like this is among the callers.
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
