// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/foreigncontext"
)

// TestSpansBesideAnyProcessContext checks that otelctx finds spans whether the process context comes from our
// library, from another one, from both or from none.
func TestSpansBesideAnyProcessContext(t *testing.T) {
	t.Parallel()
	needSampling(t)
	for name, test := range map[string]struct {
		words []string
		// service is the service name in the process context, or "" if there is none. separate reports
		// whether spans are advertised in a mapping of their own.
		service  string
		separate bool
		// invalid reports whether there are two process contexts, which is not allowed.
		invalid bool
	}{
		"none":                              {[]string{busyservice.NoContext}, "", true, false},
		"another library's":                 {[]string{busyservice.Context, busyservice.NoContext}, foreigncontext.Service, true, false},
		"another library's, published last": {[]string{busyservice.NoContext, busyservice.ContextAfter}, foreigncontext.Service, true, false},
		"another library's and ours":        {[]string{busyservice.ContextAfter}, "", true, true},
		"ours":                              {nil, "busyservice", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := startBusyService(t, nil, append(test.words, busyservice.Records, busyservice.GoroutineTable, busyservice.ThreadSlots)...)
			inspected := inProcess(t, "inspect", pidOf(c), "--json")
			require.Zero(t, inspected.code, inspected.stderr)
			var d processDocument
			require.NoError(t, json.Unmarshal([]byte(inspected.stdout), &d))
			if test.service != "" {
				assert.Equal(t, test.service, d.Resource["service.name"])
			} else {
				assert.Empty(t, d.Resource)
			}
			if assert.Equal(t, test.separate, d.Advertisement != nil) && test.separate {
				assert.Contains(t, d.Advertisement.Attributes, "threadlocal.schema_version")
			}
			assert.Len(t, d.Carriers, 3)
			for _, carrier := range d.Carriers {
				assert.Equal(t, "advertised", carrier.Source)
				assert.True(t, carrier.Provable)
			}
			assert.NotContains(t, printed(t, "inspect", pidOf(c)), "threadlocal.schema_version")
			text := printed(t, "inspect", pidOf(c), "-v")
			assert.Contains(t, text, "threadlocal.schema_version")
			assert.Equal(t, test.invalid, strings.Contains(text, "2 process contexts"))

			file := filepath.Join(t.TempDir(), "profile.pb.gz")
			recording, got := recorded(t, c, "--output", file)
			assert.Greater(t, recording.Attributed, uint64(30))
			assert.Zero(t, recording.Unproven)
			assertTrue(t, file)
			if test.invalid {
				assert.Contains(t, got.stderr, "invalid process context: 2 process contexts")
			} else {
				assert.Empty(t, got.complaints())
			}
		})
	}
}
