// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/reader"
)

// A C program publishes thread contexts (OTEP 4947) with every placement of the variable that C
// compilers and loaders use. Each thread's record follows from its number.
func TestThreadContexts(t *testing.T) {
	const (
		publisher = "testdata/threadcontext/publisher.c"
		library   = "testdata/threadcontext/library.c"
		threads   = 6
	)
	for _, tt := range []struct {
		name             string
		program, library []string // flags; no library if nil
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
	} {
		t.Run(tt.name, func(t *testing.T) {
			flags := tt.program
			args := []string{strconv.Itoa(threads)}
			if tt.library != nil {
				flags = []string{"-DWITHOUT_VARIABLE"}
				args = append(args, programs.C(t, library, append([]string{"-shared", "-fPIC"}, tt.library...)...))
			}
			cmd := exec.Command(programs.C(t, publisher, append([]string{"-O1", "-pthread"}, flags...)...), args...)
			child := childproc.Run(t, cmd)
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

			// Repeat: thread pointers and variables are cached.
			for range 3 {
				contexts, err := p.ThreadContexts(t.Context())
				require.NoError(t, err)
				require.NoError(t, contexts.Unresolved)
				assert.Equal(t, "tlsdesc_v1_dev", contexts.Schema)
				assert.Equal(t, []string{"worker", "update"}, contexts.Keys)
				require.Len(t, contexts.Variables, 1)
				assert.Equal(t, tt.model, contexts.Variables[0].Model)

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
					assert.Equal(t, []reader.ThreadAttribute{{Key: "worker", Value: fmt.Sprintf("%02d", number)}}, thread.Span.Attributes)
				}
				assert.Equal(t, "done", child.Ask("update"))
			}

			assert.Equal(t, "done", child.Ask("detach"))
			seen, err := p.Threads(t.Context())
			require.NoError(t, err)
			for _, thread := range seen {
				assert.Nil(t, thread.Span, "nothing is published after the detachment")
			}
		})
	}
}
