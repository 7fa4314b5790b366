// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

// Work is a kind of work that the processor did.
type Work int

// The kinds of work.
const (
	// Application is the program's own code, with all libraries but the Go runtime.
	Application Work = iota
	// Runtime is what the Go runtime does on behalf of the program: to allocate memory, to
	// use maps and channels, to change goroutines.
	Runtime
	// GarbageCollection is the Go runtime's, also on behalf of goroutines that allocate.
	GarbageCollection
	// Idle is the Go scheduler that looks for something to run.
	Idle
	// Kernel is seen only where the kernel's part of stacks is recorded. Else its work is
	// that of what called it, as is always so for the collector's and the scheduler's calls.
	Kernel

	numWorks
)

func (w Work) String() string {
	return [numWorks]string{"application", "runtime", "garbage_collection", "idle", "kernel"}[w]
}

// Functions of the Go runtime below which there is nothing but this work.
var runtimeWork = map[string]Work{
	"runtime.gcBgMarkWorker":         GarbageCollection,
	"runtime.gcAssistAlloc":          GarbageCollection,
	"runtime.gcAssistAlloc1":         GarbageCollection,
	"runtime.gcStart":                GarbageCollection,
	"runtime.gcMarkDone":             GarbageCollection,
	"runtime.gcMarkTermination":      GarbageCollection,
	"runtime.gcDrain":                GarbageCollection,
	"runtime.gcDrainN":               GarbageCollection,
	"runtime.gcWriteBarrier":         GarbageCollection,
	"runtime.wbBufFlush":             GarbageCollection,
	"runtime.bgsweep":                GarbageCollection,
	"runtime.bgscavenge":             GarbageCollection,
	"runtime.deductSweepCredit":      GarbageCollection,
	"runtime.(*sweepLocked).sweep":   GarbageCollection,
	"runtime.schedule":               Idle,
	"runtime.findRunnable":           Idle,
	"runtime.sysmon":                 Idle,
	"runtime.(*scavengerState).run":  GarbageCollection,
	"runtime.(*scavengerState).wake": GarbageCollection,
}

// workOf returns what the processor did at the top of a stack.
func workOf(stack []*symbols.Location) Work {
	if len(stack) == 0 {
		return Application
	}
	for _, l := range stack {
		if l.Type != symbols.TypeGo {
			continue
		}
		for _, line := range l.Lines {
			if w, ok := runtimeWork[line.Function]; ok {
				return w
			}
		}
	}
	leaf := stack[0]
	switch {
	case leaf.Type == symbols.TypeKernel:
		return Kernel
	case leaf.Type == symbols.TypeGo && len(leaf.Lines) > 0 && inRuntime(leaf.Lines[0].Function):
		return Runtime
	default:
		return Application
	}
}

// inRuntime reports whether a function is one of the Go runtime, of any version.
func inRuntime(function string) bool {
	for _, prefix := range []string{"runtime.", "internal/runtime/", "runtime/internal/"} {
		if strings.HasPrefix(function, prefix) {
			return true
		}
	}
	return false
}
