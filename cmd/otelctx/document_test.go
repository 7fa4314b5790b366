// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"

	"github.com/otelctx/otelctx/reader"
)

func TestEncodedJSONPrintsAndMeansTheSame(t *testing.T) {
	const s = "\x00\x1b\x7f\u0085\u009b\u2028\u202e\u200d\U000e0041\U0001F600 <&> \\ \" \ufffd"
	b, err := encodeJSON(map[string]any{s: s}, "")
	require.NoError(t, err)
	assert.Equal(t, string(b), escape(string(b)))
	var got map[string]any
	require.NoError(t, json.Unmarshal(b, &got))
	assert.Equal(t, map[string]any{s: s}, got)
}

// TestMappingNamesAreEscaped checks that text and JSON escape unprintable characters in the name of a mapping. A
// process chooses this name: readers accept any memfd whose name begins with OTEL_CTX.
func TestMappingNamesAreEscaped(t *testing.T) {
	pc := &reader.ProcessContext{
		MappingName: "/memfd:OTEL_CTX\x1b[2J\xff (deleted)",
		Message:     &processcontextpb.ProcessContext{},
	}
	var human, forPrograms strings.Builder
	require.NoError(t, writeInspection(&human, publication{pid: 1, context: pc}, false))
	assert.Contains(t, human.String(), `/memfd:OTEL_CTX\x1b[2J\xff (deleted)`)

	require.NoError(t, writeJSON(&forPrograms, newDocument(1, pc, activity{})))
	assert.Contains(t, forPrograms.String(), `/memfd:OTEL_CTX\u001b[2J\ufffd (deleted)`)
}
