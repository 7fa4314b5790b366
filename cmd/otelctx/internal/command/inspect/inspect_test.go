// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/reader"
)

// TestMappingNamesAreEscaped checks that text and JSON escape unprintable characters in the name of a mapping. A
// process chooses this name: readers accept any memfd whose name begins with OTEL_CTX.
func TestMappingNamesAreEscaped(t *testing.T) {
	pc := &reader.ProcessContext{MappingName: "/memfd:OTEL_CTX\x1b[2J\xff (deleted)"}
	found := publication.Publication{PID: 1, Context: pc}
	var human, forPrograms strings.Builder
	require.NoError(t, writeInspection(&human, display.Layout{}, found, false))
	assert.Contains(t, human.String(), `/memfd:OTEL_CTX\x1b[2J\xff (deleted)`)

	require.NoError(t, display.WriteJSON(&forPrograms, document.New(found)))
	assert.Contains(t, forPrograms.String(), `/memfd:OTEL_CTX\u001b[2J\ufffd (deleted)`)
}
