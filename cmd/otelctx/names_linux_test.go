// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/vma"
)

// TestMappingNames checks that inspect and list find a context under each name that the kernel may give to
// the context's mapping.
func TestMappingNames(t *testing.T) {
	for want, test := range map[string]struct {
		rules []childproc.Rule
		named bool
	}{
		"/memfd:OTEL_CTX (deleted)": {rules: []childproc.Rule{childproc.NoNaming}},
		"[anon_shmem:OTEL_CTX]":     {named: true},
		"[anon:OTEL_CTX]":           {rules: []childproc.Rule{childproc.NoMemfd}, named: true},
	} {
		t.Run(want, func(t *testing.T) {
			if test.named {
				needNaming(t)
			}
			c := startPublisher(t, "filtered", "1", test.rules...)
			got := inspected(t, c)
			require.Zero(t, got.code, got.stderr)
			assert.Contains(t, got.stdout, "Mapping     "+want+" at 0x")
			assert.Contains(t, lineOf(otelctx(t, "list").stdout, c.PID()), "filtered")
		})
	}
}

// needNaming skips the test if the kernel does not support names for anonymous memory.
func needNaming(t *testing.T) {
	t.Helper()
	const name = "otelctx-probe"
	region, err := vma.New(name, 1)
	require.NoError(t, err)
	defer region.Close()
	_ = region.Announce() // The name in maps shows whether Announce worked.
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	if !strings.Contains(string(maps), "[anon_shmem:"+name+"]") {
		t.Skip("the kernel has no CONFIG_ANON_VMA_NAME: memory has no name but a memory file's")
	}
}
