// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/reader"
)

const mappings = `00400000-00401000 r-xp 00000000 00:00 0   /bin/service
7f0000000000-7f0000001000 rw-p 00000000 00:01 9   /memfd:OTEL_CTX (deleted)
`

// refusedBy returns a fallback that may not read memory, with a list of mappings or an error
// instead of it.
func refusedBy(scope, maps string, mapsErr error) (*fallback, *strings.Builder) {
	var out strings.Builder
	return &fallback{
		out: &out,
		read: func(_ context.Context, pid int) (*reader.ProcessContext, error) {
			return nil, fmt.Errorf("pid %d: %w", pid, reader.ErrNotPermitted)
		},
		maps: func(int) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(maps)), mapsErr },
		ptraceScope: func() ([]byte, error) {
			if scope == "" {
				return nil, fs.ErrNotExist
			}
			return []byte(scope), nil
		},
	}, &out
}

func TestFallbackShowsMapping(t *testing.T) {
	f, out := refusedBy("2\n", mappings, nil)
	require.NoError(t, f.show(t.Context(), 1))
	assert.Contains(t, out.String(), "ptrace_scope is 2,")
	assert.Contains(t, out.String(), "/memfd:OTEL_CTX (deleted)\n")
	assert.NotContains(t, out.String(), "/bin/service")
}

func TestFallbackWithoutMaps(t *testing.T) {
	f, out := refusedBy("", "", fs.ErrPermission)
	require.NoError(t, f.show(t.Context(), 1))
	assert.Contains(t, out.String(), "Yama module is not the reason")
	assert.Contains(t, out.String(), fs.ErrPermission.Error())
}

func TestFallbackFailsWithoutPublication(t *testing.T) {
	f, _ := refusedBy("1\n", "", nil)
	require.ErrorContains(t, f.show(t.Context(), 1), "no mapping of a process context")
}

func TestFallbackReturnsReadErrors(t *testing.T) {
	f, _ := refusedBy("1\n", mappings, nil)
	broken := errors.New("broken")
	f.read = func(context.Context, int) (*reader.ProcessContext, error) { return nil, broken }
	require.ErrorIs(t, f.show(t.Context(), 1), broken)
}
