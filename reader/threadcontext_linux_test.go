// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
)

// TestThreadContexts checks that the reader finds the thread contexts (OTEP 4947) of C and C++
// programs, wherever compilers and loaders place the thread-local variable. The program derives the
// contents of each thread's record from the thread's number.
func TestThreadContexts(t *testing.T) {
	const (
		publisher = "testdata/threadcontext/publisher.c"
		library   = "testdata/threadcontext/library.c"
		musl      = "musl-gcc"
		threads   = 6
	)
	shared, compiled := programs.Dir(t), map[string]string{} // compiled programs, by flags
	for _, tt := range []struct {
		name             string
		program, library []string // compiler flags, after the compiler unless that is cc; library is nil if there is none
		model            string
	}{
		{"executable", []string{"-rdynamic"}, nil, "local-exec"},
		{"executable at a fixed address", []string{"-no-pie", "-rdynamic"}, nil, "local-exec"},
		{"static executable", []string{"-static-pie", "-Wl,--export-dynamic-symbol=otel_thread_ctx_v1"}, nil, "local-exec"},
		{"library, traditional", nil, []string{}, "global-dynamic"},
		{"library, TLSDESC", nil, []string{"-mtls-dialect=gnu2"}, "initial-exec"},
		{"large library, traditional", nil, []string{"-DLARGE"}, "global-dynamic"},
		{"large library, TLSDESC", nil, []string{"-DLARGE", "-mtls-dialect=gnu2"}, "global-dynamic"},
		{"library, initial exec", nil, []string{"-ftls-model=initial-exec"}, "initial-exec"},
		{"library with a SysV hash table", nil, []string{"-Wl,--hash-style=sysv"}, "global-dynamic"},
		{"C++ executable", []string{"-rdynamic", "-DOTHER_FILE", "-x", "c++", library}, nil, "local-exec"},
		{"C++ library", nil, []string{"g++"}, "global-dynamic"},
		{"musl executable", []string{musl, "-rdynamic"}, nil, "local-exec"},
		{"static musl executable", []string{musl, "-static-pie", "-Wl,--export-dynamic-symbol=otel_thread_ctx_v1"}, nil, "local-exec"},
		{"musl, library, traditional", []string{musl}, []string{musl}, "global-dynamic"},
		{"musl, library, TLSDESC", []string{musl}, []string{musl, "-mtls-dialect=gnu2"}, "global-dynamic"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			flags := tt.program
			args := []string{strconv.Itoa(threads)}
			if tt.library != nil {
				flags = append(slices.Clone(flags), "-DWITHOUT_VARIABLE")
				args = append(args, compile(t, library, tt.library, "-shared", "-fPIC"))
			}
			key := fmt.Sprint(flags)
			if compiled[key] == "" {
				exe := filepath.Join(shared, strconv.Itoa(len(compiled)))
				require.NoError(t, os.Link(compile(t, publisher, flags, "-O1", "-pthread"), exe))
				compiled[key] = exe
			}
			child := childproc.Run(t, exec.Command(compiled[key], args...))
			numbers := map[int]int{}
			for line := child.Receive(); line != "ready"; line = child.Receive() {
				var tid, number int
				_, err := fmt.Sscan(line, &tid, &number)
				require.NoError(t, err, line)
				numbers[tid] = number
			}
			require.Len(t, numbers, threads)
			p, err := reader.Open(child.PID())
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, p.Close()) })

			// Read again, because later reads use cached thread pointers and variables.
			for range 3 {
				contexts, err := p.ThreadContexts(t.Context())
				require.NoError(t, err)
				require.NoError(t, contexts.Unresolved)
				assert.Equal(t, []string{"worker", "update"}, contexts.Keys)
				require.Len(t, contexts.Modules, 1)
				assert.Equal(t, []string{tt.model}, p.TLSModels())

				seen, err := p.Threads(t.Context())
				require.NoError(t, err)
				require.Len(t, seen, threads+1)
				for _, thread := range seen {
					number, publishes := numbers[thread.TID]
					if !publishes {
						assert.Nil(t, thread.Span, "the first thread has no context")
						continue
					}
					require.NotNil(t, thread.Span)
					assert.Equal(t, bytes.Repeat([]byte{byte(number + 1)}, 16), thread.Span.TraceID[:])
					assert.Equal(t, bytes.Repeat([]byte{byte(number + 101)}, 8), thread.Span.SpanID[:])
					assert.Equal(t, byte(1), thread.Span.TraceFlags)
					assert.Equal(t, reader.ThreadContextRecord, thread.Span.Carrier)
					assert.True(t, thread.Span.Proven)
					assert.Equal(t, []reader.Attribute{{Key: "worker", Value: fmt.Sprintf("%02d", number)}}, thread.Span.Attributes)
				}
				assert.Equal(t, "done", child.Ask("update"))
			}

			assert.Equal(t, "done", child.Ask("detach"))
			seen, err := p.Threads(t.Context())
			require.NoError(t, err)
			for _, thread := range seen {
				assert.Nil(t, thread.Span, "nothing is published after detaching")
			}
		})
	}
}

// TestThreadContextsUnderUpdates checks that the reader never returns a mixture of two records,
// even if threads replace their records and the process updates its context during the read.
func TestThreadContextsUnderUpdates(t *testing.T) {
	const threads = 3
	cmd := exec.Command(programs.C(t, "testdata/threadcontext/publisher.c", "-pthread", "-rdynamic"), strconv.Itoa(threads))
	cmd.Env = append(os.Environ(), "CHURN=1")
	child := childproc.Run(t, cmd)
	for child.Receive() != "ready" {
	}
	p, err := reader.Open(child.PID())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })

	stop := make(chan struct{})
	var updates sync.WaitGroup
	updates.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				child.Ask("update")
			}
		}
	})
	reads, busy, invalid := 0, 0, 0
	values := map[string]bool{}
	for want := testenv.Rounds(2000, 100_000); reads < want; {
		contexts, err := p.ThreadContexts(t.Context())
		if errors.Is(err, reader.ErrBusy) {
			busy++
			continue
		}
		require.NoError(t, err)
		for _, c := range contexts.Threads {
			switch {
			case errors.Is(c.Err, reader.ErrBusy):
				busy++
			case c.Record != 0 && c.Span == nil && c.Err == nil:
				invalid++
			case c.Record != 0:
				require.NoError(t, c.Err)
				reads++
				number := c.Span.TraceID[0] - 1
				require.Equal(t, bytes.Repeat([]byte{number + 1}, 16), c.Span.TraceID[:])
				require.Equal(t, bytes.Repeat([]byte{number + 101}, 8), c.Span.SpanID[:])
				value := fmt.Sprintf("%02d", number)
				require.Equal(t, []reader.Attribute{{Key: "worker", Value: value}}, c.Span.Attributes)
				values[value] = true
			}
		}
	}
	close(stop)
	updates.Wait()
	t.Logf("%d reads of %d different records, %d busy, %d invalid", reads, len(values), busy, invalid)
	assert.Greater(t, len(values), 10)
}

// A process with many modules whose tables are large cannot keep the reader busy. Its real contexts are
// still found.
func TestThreadContextsAmongForgeries(t *testing.T) {
	child, numbers := startThreads(t, 2, "FORGE=1")
	p := openProcess(t, child.PID())
	contexts, err := p.ThreadContexts(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, contexts.Unresolved, reader.ErrInvalid)
	require.ErrorContains(t, contexts.Unresolved, "searching all modules for the symbol takes more than 256 MiB")
	threads, err := p.Threads(t.Context())
	require.NoError(t, err)
	for _, thread := range threads {
		_, publishes := numbers[thread.TID]
		assert.Equal(t, publishes, thread.Span != nil)
	}
}

// TestThreadContextsAfterExec checks that the context of a thread is found after the thread has executed a program,
// which gives it another thread-local storage, but keeps its id and start time.
func TestThreadContextsAfterExec(t *testing.T) {
	cmd := exec.Command(programs.C(t, "testdata/threadcontext/publisher.c", "-O1", "-pthread", "-rdynamic"), "0")
	cmd.Env = append(os.Environ(), "FIRST=1")
	child := childproc.Run(t, cmd)
	p := openProcess(t, child.PID())
	for range 3 {
		assert.Equal(t, fmt.Sprint(child.PID(), " 0"), child.Receive())
		child.Expect("ready")
		for range 2 { // the second time with cached thread pointers
			threads, err := p.Threads(t.Context())
			require.NoError(t, err)
			require.Len(t, threads, 1)
			require.NoError(t, threads[0].Err)
			require.NotNil(t, threads[0].Span)
			assert.Equal(t, bytes.Repeat([]byte{1}, 16), threads[0].Span.TraceID[:])
		}
		child.Send("exec")
	}
	assert.Equal(t, fmt.Sprint(child.PID(), " 0"), child.Receive())
}

// compile compiles source and returns the path of the result. The compiler is the first element of
// flags if that does not begin with "-", and cc otherwise.
func compile(t *testing.T, source string, flags []string, more ...string) string {
	t.Helper()
	compiler := "cc"
	if len(flags) > 0 && !strings.HasPrefix(flags[0], "-") {
		compiler, flags = flags[0], flags[1:]
	}
	if _, err := exec.LookPath("g++"); err != nil && slices.Contains(flags, "c++") {
		t.Skipf("no compiler: %v", err)
	}
	return programs.Compile(t, compiler, source, append(more, flags...)...)
}
