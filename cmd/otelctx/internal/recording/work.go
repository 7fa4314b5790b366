// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

// Work is a kind of CPU work.
type Work int

// The kinds of work.
const (
	// Application is the program's own code and all libraries except the Go runtime.
	Application Work = iota
	// Runtime is work of the Go runtime on behalf of the program: memory allocation, maps, channels,
	// goroutine switches.
	Runtime
	// GarbageCollection is the work of Go's garbage collector, including assists by allocating goroutines.
	GarbageCollection
	// Idle is the Go scheduler looking for a goroutine to run.
	Idle
	// Kernel is work of the kernel. Without kernel stacks in the recording, it counts as work of the caller.
	// The same applies if the caller is the garbage collector or the scheduler.
	Kernel

	numWorks
)

func (w Work) String() string {
	return [numWorks]string{"application", "runtime", "garbage_collection", "idle", "kernel"}[w]
}

// runtimeWork maps functions of the Go runtime to the kind of work that they and all their callees do.
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

// workOf returns the kind of work that a sample with this stack counts as.
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

// inRuntime reports whether a function belongs to the Go runtime, in any version of Go.
func inRuntime(function string) bool {
	for _, prefix := range []string{"runtime.", "internal/runtime/", "runtime/internal/"} {
		if strings.HasPrefix(function, prefix) {
			return true
		}
	}
	return false
}
