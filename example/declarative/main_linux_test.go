// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/otelconf"

	"github.com/otelctx/otelctx/reader"
)

// configured sets OTEL_CONFIG_FILE to a copy of otel.yaml in which old is replaced by
// replacement.
func configured(t *testing.T, old, replacement string) {
	t.Helper()
	text, err := os.ReadFile("otel.yaml")
	require.NoError(t, err)
	require.Contains(t, string(text), old)
	path := filepath.Join(t.TempDir(), "otel.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), old, replacement, 1)), 0o600))
	t.Setenv("OTEL_CONFIG_FILE", path)
}

func TestPublishesConfiguredResource(t *testing.T) {
	exported := make(chan struct{}, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { exported <- struct{}{} }))
	defer collector.Close()
	configured(t, "http://localhost:4318", collector.URL)

	stdout, toStdout := io.Pipe()
	stdin, toStdin := io.Pipe()
	done := make(chan error)
	go func() { done <- run(context.Background(), toStdout, stdin) }()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	assert.Contains(t, line, "otelctx inspect")

	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	defer p.Close()
	pc, err := p.ProcessContext(context.Background())
	require.NoError(t, err)
	got := map[string]string{}
	for _, kv := range pc.Resource.GetAttributes() {
		got[kv.GetKey()] = kv.GetValue().GetStringValue()
	}
	assert.Equal(t, "declarative", got["service.name"])
	spans, err := p.Spans(context.Background())
	require.NoError(t, err)
	require.Len(t, spans, 1)
	assert.Equal(t, "work", spans[0].Name)

	require.NoError(t, toStdin.Close())
	require.NoError(t, <-done)
	<-exported
	_, err = p.ProcessContext(context.Background())
	require.ErrorIs(t, err, reader.ErrNoContext, "withdrawn with the provider")
}

// TestFileCannotNameProcessors checks that otelconf still has no registry for span processors. If
// it fails, main.go no longer needs to add otelctx itself: see docs/design/proposals/otelconf-span-processors.md.
func TestFileCannotNameProcessors(t *testing.T) {
	configured(t, "    - batch:", "    - otelctx: {}\n    - batch:")
	_, err := otelconf.NewSDK()
	require.ErrorContains(t, err, "unsupported span processor type")
}
