// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spans

import (
	"io"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
)

// BenchmarkSpans reads a process with many waiting goroutines. The process's symbols are read beforehand. "snapshot"
// takes a snapshot as record --wall does. "document" does the work of spans --stacks except writing the output.
func BenchmarkSpans(b *testing.B) {
	childproc.NeedReading(b)
	exe := programs.Build(b, programs.Static, "../../../../..", "./internal/testing/waitingservice")
	for _, count := range []int{1000, 10_000} {
		child := childproc.Run(b, exec.Command(exe, strconv.Itoa(count), "chan receive"))
		child.Expect("started")
		p, err := waiting.Open(child.PID())
		require.NoError(b, err)
		first, err := p.Snapshot(b.Context())
		require.NoError(b, err)
		command := &Command{Stacks: true}
		document := command.document(b.Context(), &spansReader{pid: child.PID(), process: p}, first, time.Now())
		require.NoError(b, command.writeJSON(io.Discard, document, ""))
		b.Run("snapshot/spans="+strconv.Itoa(count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				snapshot, err := p.Sample(b.Context(), waiting.Options{Stacks: true})
				require.NoError(b, err)
				require.Len(b, snapshot.Goroutines, len(first.Goroutines))
			}
		})
		b.Run("document/spans="+strconv.Itoa(count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				snapshot, err := p.Snapshot(b.Context())
				require.NoError(b, err)
				document := command.document(b.Context(), &spansReader{pid: child.PID(), process: p}, snapshot, time.Now())
				require.NoError(b, command.writeJSON(io.Discard, document, ""))
			}
		})
		require.NoError(b, p.Close())
		child.Kill()
	}
}
