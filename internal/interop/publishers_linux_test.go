// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/reader"
)

// TestPublishers checks that package reader understands publishers in other languages that were
// written from the OTEPs. It must find the service's name and the span of each thread that
// publishes one. The span's trace id and attribute follow from the number that the publisher prints
// for it.
func TestPublishers(t *testing.T) {
	source := func(name string) string { return filepath.Join("publishers", name) }
	for _, tt := range []struct {
		service string
		threads int
		build   func(dir string) [][]string
		run     func(dir string) []string
	}{
		{
			"rust-publisher", 3,
			func(dir string) [][]string {
				object := filepath.Join(dir, "native.o")
				return [][]string{
					{"cc", "-c", "-o", object, source("native.c")},
					{
						"rustc", "--edition", "2021", "-o", filepath.Join(dir, "rust"), source("publisher.rs"), "-C", "link-arg=" + object,
						"-C", "link-arg=-rdynamic", "-C", "link-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1",
					},
				}
			},
			func(dir string) []string { return []string{filepath.Join(dir, "rust")} },
		},
		{
			"java-publisher", 3,
			func(dir string) [][]string {
				return [][]string{
					{"sh", "-c", `home=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")
						exec cc -shared -fPIC -DJNI -I"$home/include" -I"$home/include/linux" -o "$1" "$2"`, "sh", filepath.Join(dir, "native.so"), source("native.c")},
					{"javac", "-d", dir, source("Publisher.java")},
				}
			},
			func(dir string) []string {
				return []string{"java", "-cp", dir, "Publisher", filepath.Join(dir, "native.so")}
			},
		},
		{
			"node-publisher", 0,
			func(dir string) [][]string {
				return [][]string{{"cc", "-shared", "-fPIC", "-DNAPI", "-I/usr/include/node", "-o", filepath.Join(dir, "publisher.node"), source("native.c")}}
			},
			func(dir string) []string {
				return []string{"node", source("publisher.js"), filepath.Join(dir, "publisher.node")}
			},
		},
	} {
		t.Run(tt.service, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := exec.LookPath(tt.run(dir)[0]); err != nil && !filepath.IsAbs(tt.run(dir)[0]) {
				t.Skip(err)
			}
			for _, command := range tt.build(dir) {
				if _, err := exec.LookPath(command[0]); err != nil {
					t.Skip(err)
				}
				if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
					t.Skipf("%s: %v\n%s", command[0], err, out)
				}
			}
			run := tt.run(dir)
			child := childproc.Run(t, exec.Command(run[0], run[1:]...))
			numbers := map[int]int{}
			for line := child.Receive(); line != "ready"; line = child.Receive() {
				var tid, number int
				_, err := fmt.Sscan(line, &tid, &number)
				require.NoError(t, err, line)
				numbers[tid] = number
			}
			require.Len(t, numbers, tt.threads)

			p, err := reader.Open(child.PID())
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, p.Close()) })
			for range 10 {
				pc, err := p.ProcessContext(t.Context())
				require.NoError(t, err)
				assert.Equal(t, tt.service, pc.Resource.GetAttributes()[0].GetValue().GetStringValue())
				threads, err := p.Threads(t.Context())
				if tt.threads == 0 {
					require.ErrorIs(t, err, reader.ErrNoThreadContext)
				} else {
					require.NoError(t, err)
				}
				found := 0
				for _, thread := range threads {
					number, publishes := numbers[thread.TID]
					if !publishes {
						assert.Nil(t, thread.Span)
						continue
					}
					found++
					require.NotNil(t, thread.Span)
					assert.Equal(t, bytes.Repeat([]byte{byte(number + 1)}, 16), thread.Span.TraceID[:])
					assert.Equal(t, []reader.Attribute{{Key: "worker", Value: fmt.Sprintf("%02d", number)}}, thread.Span.Attributes)
				}
				assert.Equal(t, tt.threads, found)
				assert.Equal(t, "done", child.Ask("update"))
			}
		})
	}
}
