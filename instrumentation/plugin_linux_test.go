// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"context"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
)

// A plugin shares the Go runtime and all packages with its host, including otelctx: spans that
// either of them starts are published in the same memory.
func TestPlugin(t *testing.T) {
	testenv.NeedAll(t)
	v := programs.Cgo
	v.Name, v.Flags = "plugin", []string{"-buildmode=plugin"}
	host, guest := programs.Build(t, programs.Cgo, ".", "./testdata/plugin/host"), programs.Build(t, v, ".", "./testdata/plugin/guest")
	cmd := exec.Command(host, guest)
	p := startProgram(t, cmd)
	var before []reader.Carrier
	for _, step := range []struct {
		about string
		live  []string
		runs  string
	}{
		{"in a span of the plugin", []string{"guest", "host"}, "guest"},
		{"after it", []string{"host"}, "host"},
		{"with a provider of the plugin", []string{"guest", "host"}, "guest"},
		{"after its Shutdown", []string{"host"}, "host"},
	} {
		p.expect(t, "ready")
		service, live := inspect(t, cmd.Process.Pid)
		assert.Equal(t, "host", service, step.about)
		assert.Equal(t, step.live, live, step.about)
		awaitThread(t, cmd.Process.Pid, step.runs)
		carriers := carriersOf(t, cmd.Process.Pid)
		if before != nil {
			assert.Equal(t, before, carriers, step.about)
		}
		before = carriers
		p.goOn(t)
	}
	require.NoError(t, cmd.Wait(), p.stderr.String())
	assert.Empty(t, p.stderr.String())
}

func carriersOf(t *testing.T, pid int) []reader.Carrier {
	t.Helper()
	p, err := reader.Open(pid)
	require.NoError(t, err)
	defer p.Close()
	layout, err := p.ThreadLayout(context.Background())
	require.NoError(t, err)
	require.NotEmpty(t, layout.Carriers)
	return layout.Carriers
}

// awaitThread waits until the reader finds a thread that is in the span with this name, and can
// prove that the thread runs the span's goroutine.
func awaitThread(t *testing.T, pid int, span string) {
	t.Helper()
	p, err := reader.Open(pid)
	require.NoError(t, err)
	defer p.Close()
	for deadline := time.Now().Add(testenv.Patience); ; {
		threads, err := p.Threads(context.Background())
		require.NoError(t, err)
		if slices.ContainsFunc(threads, func(th reader.Thread) bool {
			return th.Span != nil && th.Span.Name == span && th.Span.Proven
		}) {
			return
		}
		require.True(t, time.Now().Before(deadline), "no thread is in %s: %+v", span, threads)
	}
}
