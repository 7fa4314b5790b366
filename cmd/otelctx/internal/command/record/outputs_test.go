// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
)

// TestFilesOfPeriods checks that the name of each file has the start of its period, and that a period without samples
// leaves no file.
func TestFilesOfPeriods(t *testing.T) {
	dir := t.TempDir()
	s := &session{
		plan:    &plan{repeat: true, profile: profilePlan{path: filepath.Join(dir, "p.jsonl"), format: export.JSONLines}},
		streams: terminal.Streams{Stdout: io.Discard, Stderr: io.Discard},
	}
	o, err := s.openOutputs(t.Context())
	require.NoError(t, err)
	at := func(hour int) time.Time { return time.Date(2026, 11, 28, hour, 0, 0, 0, time.UTC) }
	data := profile.New(profile.Options{Start: at(1), Frequency: 1}).Data(at(2))
	assert.Empty(t, o.roll(at(1)), "a period without samples")
	o.add(data)
	assert.Equal(t, filepath.Join(dir, "p-20261128T010000.000000Z.jsonl"), o.roll(at(2)))
	assert.Empty(t, o.roll(at(3)), "another one")
	o.add(data)
	last, err := o.close()
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "p-20261128T030000.000000Z.jsonl"), last)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	assert.Len(t, files, 2)
}
