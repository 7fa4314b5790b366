// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// reserved lists language features and files that need a review, and the packages that may use
// them, including their tests. Each use must explain why it is sound.
var reserved = map[string]string{
	"unsafe": "internal/wire internal/vma internal/ordered internal/spantable internal/ring internal/gorecord internal/goruntime internal/ownmem internal/elastic " +
		"internal/profilersocket internal/sdkspan internal/providers internal/goroutines internal/tlsvar spanctx cmd/otelctx/internal/kernel/privilege " +
		"cmd/otelctx/internal/kernel/sampler cmd/otelctx/internal/conformance instrumentation " +
		// Tests, and programs that tests run.
		"internal/testing/childproc internal/interop/profiler internal/goruntime/testdata/probe internal/testing/busyservice " +
		"cmd/otelctx cmd/otelctx/internal/recording cmd/otelctx/internal/profile/symbols cmd/otelctx/internal/profile/symbols/testdata/prog",
	// Assembly.
	".s": "internal/goruntime internal/elastic",
	// Cgo is allowed for the thread-local variable of programs that use cgo anyway, and in programs
	// that tests run.
	"C": "internal/elastic/cgoword instrumentation/testdata/library internal/goruntime/testdata/probe spanctx/testdata/cgo " +
		"internal/testing/busyservice/service internal/testing/waitingservice cmd/otelctx/internal/profile/symbols/testdata/cgo cmd/otelctx/testdata/loader benchmarks/scoreboard",
	// The C files belong to packages above, to the BPF program, to an example reader in C, and to
	// programs that tests run.
	".c": "instrumentation/testdata/library internal/elastic/cgoword internal/elastic/testdata cmd/otelctx/internal/kernel/sampler example/creader " +
		"cmd/otelctx/internal/hostile/testdata cmd/otelctx/testdata/mapper " +
		// Publishers in C.
		"internal/interop/publishers reader/testdata/threadcontext",
	".h": "cmd/otelctx/internal/kernel/sampler",
	// Tests that make system calls that package syscall lacks. For code outside of tests, see the
	// table linked.
	"x/sys in tests": "internal/elastic internal/goruntime internal/goruntime/testdata/probe internal/profilersocket " +
		"internal/timelimit internal/vma internal/ownmem reader universalprofiling resourcepublisher internal/interop/backends internal/interop/otlp cmd/otelctx cmd/otelctx/internal/kernel/sampler cmd/otelctx/internal/hostile",
}

// linknames lists the names that packages access through go:linkname.
var linknames = map[string]string{
	"internal/elastic": "runtime.iscgo",
	// Not a runtime function: NewTracerProvider calls it, but the SDK cannot import package
	// instrumentation.
	"instrumentation":    "github.com/otelctx/otelctx/instrumentation.provider",
	"internal/goruntime": "runtime.procPin runtime.procUnpin runtime/pprof.runtime_getProfLabel runtime/pprof.runtime_setProfLabel",
}

// memoryCalls lists packages whose code outside of tests creates or changes mappings, reads the
// memory of another process, or traces one. For each it lists the names from x/sys/unix and syscall
// that the code uses for this.
var memoryCalls = map[string]string{
	"internal/vma":       "Madvise MemfdCreate Mmap MmapPtr Munmap SYS_PRCTL",
	"internal/remotemem": "ProcessVMReadv",
	// These calls do not access memory. They resume a process that was stopped before its first
	// instruction.
	"cmd/otelctx/internal/kernel/launch": "PtraceCont PtraceDetach",
	// Perf event buffers.
	"cmd/otelctx/internal/kernel/sampler": "Mmap Munmap",
	// The command maps a page of its own to test whether the kernel can name mappings.
	"cmd/otelctx/internal/conformance": "Mmap Munmap Prctl",
	// These calls stop a thread of another process to read its thread pointer.
	"internal/tlsvar": "PTRACE_DETACH PTRACE_GETREGSET PtraceInterrupt PtraceSeize SYS_PTRACE",
	// For tests.
	"internal/testing/childproc": "MemfdCreate Mmap Mprotect Prctl SYS_MADVISE SYS_MEMFD_CREATE SYS_MMAP SYS_PRCTL SYS_PROCESS_VM_READV SYS_USERFAULTFD",
}

// memoryCall matches the names of system calls that access memory or mappings, and of their
// constants.
var memoryCall = regexp.MustCompile(`(?i)^(sys_)?(mmap|munmap|mremap|mprotect|madvise|mlock|munlock|mincore|msync|memfd|` +
	`pkey|prctl|ptrace|shm|sysvshm|process_?vm|process_madvise|remap|brk|userfaultfd)`)

func TestReserved(t *testing.T) {
	tr := readTree(t)
	found := map[string]row{}
	for _, f := range tr.files {
		for _, p := range f.imports() {
			switch {
			case p == "unsafe", p == "C":
				add(found, p, f.dir)
			case f.test && strings.HasPrefix(p, "golang.org/x/sys/"):
				add(found, "x/sys in tests", f.dir)
			}
		}
	}
	for _, other := range tr.others {
		if ext := path.Ext(other); ext == ".s" || ext == ".S" || ext == ".c" || ext == ".h" {
			add(found, ext, path.Dir(other))
		}
	}
	compare(t, reserved, found)
}

// Assembly uses no names of Go types, which obfuscators change: a service that links it could not be built with garble.
func TestAssemblyWithoutGoNames(t *testing.T) {
	tr := readTree(t)
	checked := 0
	for _, other := range tr.others {
		if path.Ext(other) == ".s" {
			checked++
			content, err := os.ReadFile(filepath.Join(tr.root, other))
			require.NoError(t, err)
			assert.NotContains(t, string(content), `"go_asm.h"`, other)
		}
	}
	assert.Positive(t, checked)
}

func TestLinknames(t *testing.T) {
	found := map[string]row{}
	for _, f := range readTree(t).files {
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if words := strings.Fields(c.Text); words[0] == "//go:linkname" {
					add(found, f.dir, words[len(words)-1])
				}
			}
		}
	}
	compare(t, linknames, found)
}

func TestMemoryCalls(t *testing.T) {
	found := map[string]row{}
	for _, f := range readTree(t).files {
		if f.test {
			continue
		}
		calls := f.localNames("golang.org/x/sys/unix", "syscall")
		ast.Inspect(f.ast, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := selector.X.(*ast.Ident)
			if ok && calls[pkg.Name] && memoryCall.MatchString(selector.Sel.Name) {
				add(found, f.dir, selector.Sel.Name)
			}
			return true
		})
	}
	compare(t, memoryCalls, found)
}

// localNames returns the names under which f imports any of paths.
func (f file) localNames(paths ...string) row {
	out := row{}
	for i, p := range f.imports() {
		if !slices.Contains(paths, p) {
			continue
		}
		if name := f.ast.Imports[i].Name; name != nil {
			out[name.Name] = true
		} else {
			out[path.Base(p)] = true
		}
	}
	return out
}
