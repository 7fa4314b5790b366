// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/spanctx"
)

// listener calls spanctx.Attach at the start of Accept, as the documentation recommends.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	spanctx.Attach(context.Background())
	return l.Listener.Accept()
}

// If http.Server.ConnContext starts a span, handlers are in it, and the loop that accepts connections is
// not.
func TestConnContext(t *testing.T) {
	tp := sdktrace.NewTracerProvider(spanctx.WithPublishing())
	defer func() { assert.NoError(t, tp.Shutdown(context.Background())) }()
	var inHandler, inAccept bool
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		id := trace.SpanContextFromContext(r.Context()).SpanID().String()
		var profile bytes.Buffer
		assert.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
		for goroutines := range strings.SplitSeq(profile.String(), "\n\n") {
			if strings.Contains(goroutines, id) {
				inHandler = inHandler || strings.Contains(goroutines, "TestConnContext")
				inAccept = inAccept || strings.Contains(goroutines, "Accept")
			}
		}
	}))
	s.Listener = listener{s.Listener}
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		ctx, span := tp.Tracer("test").Start(ctx, "connection")
		t.Cleanup(func() { span.End() })
		return ctx
	}
	s.Start()
	response, err := http.Get(s.URL) //nolint:noctx // a local server
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	s.Close()
	assert.True(t, inHandler)
	assert.False(t, inAccept)
}
