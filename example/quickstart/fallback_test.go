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

// refusedBy returns a fallback for a service whose memory may not be read. scope is Yama's mode, or ""
// if the kernel lacks Yama. maps is the list of mappings, and mapsErr the error of opening it.
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

func TestFallback(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		scope, maps      string
		mapsErr, readErr error
		want             []string // in the output, or in the error if fails is set
		fails            bool
	}{
		"shows the mapping":     {"2\n", mappings, nil, nil, []string{"ptrace_scope is 2,", "/memfd:OTEL_CTX (deleted)\n"}, false},
		"no maps":               {"", "", fs.ErrPermission, nil, []string{"Yama module is not the reason", fs.ErrPermission.Error()}, false},
		"nothing is published":  {"1\n", "", nil, nil, []string{"no mapping of a process context"}, true},
		"memory cannot be read": {"1\n", mappings, nil, broken, []string{"broken"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, out := refusedBy(tt.scope, tt.maps, tt.mapsErr)
			if tt.readErr != nil {
				f.read = func(context.Context, int) (*reader.ProcessContext, error) { return nil, tt.readErr }
			}
			err := f.show(t.Context(), 1)
			for _, want := range tt.want {
				if tt.fails {
					require.ErrorContains(t, err, want)
				} else {
					require.NoError(t, err)
					assert.Contains(t, out.String(), want)
				}
			}
			assert.NotContains(t, out.String(), "/bin/service")
		})
	}
}
