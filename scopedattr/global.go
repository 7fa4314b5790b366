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

// globalPackages lists the packages that implement the global providers. Package otel, and package
// log/global before v1.47.0, return these providers until an SDK is set. They hold a lock while
// they delegate to the provider that is being set as the global one.
var globalPackages = []string{"go.opentelemetry.io/otel/internal/global", "go.opentelemetry.io/otel/log/internal/global"}

// cycle detects a wrapper of the global provider that has itself been set as the global provider.
// The two would call each other forever, and the second call would deadlock on the lock held by the
// first.
type cycle struct {
	// global is the package of the wrapped provider if it is a global provider, and "" otherwise.
	global string
	report sync.Once
}

func (c *cycle) init(wrapped any) {
	if t := reflect.TypeOf(wrapped); t.Kind() == reflect.Pointer && slices.Contains(globalPackages, t.Elem().PkgPath()) {
		c.global = t.Elem().PkgPath()
	}
}

// calledByWrapped reports whether the wrapper is being called by the global provider that it wraps.
// If so, the wrapper must not call the global provider, and the mistake is reported once.
// calledByWrapped walks the stack, which costs little overall: meters and loggers are rarely
// created, and few programs wrap the global provider.
func (c *cycle) calledByWrapped(kind string) bool {
	if c.global == "" || !calledFrom(c.global+".(*") {
		return false
	}
	c.report.Do(func() {
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
