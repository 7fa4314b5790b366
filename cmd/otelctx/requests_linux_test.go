// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/spanctx"
)

const roleServer = "server"

// allocated keeps what requests allocate from being allocated on the stack.
var allocated []byte

// serverRole is an HTTP service that samples one percent of its requests, and publishes all. Each request has two child
// spans, uses the CPU and allocates. For each line "PATH N", it serves that many requests and answers "served". A request
// to /hold ends when another one begins, and one to /hold?forever never.
func serverRole(parent *childproc.Parent) {
	tp := spanctx.PublishAll(sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.TraceIDRatioBased(0.01)), sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName("server")))))
	tracer := tp.Tracer("server")
	held := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ctx, span := tracer.Start(r.Context(), "GET "+r.URL.Path)
		defer span.End()
		switch r.URL.RequestURI() {
		case "/hold?forever":
			select {}
		case "/hold":
			select {
			case held <- struct{}{}:
			case <-held:
			}
		}
		_, query := tracer.Start(ctx, "query")
		for began := time.Now(); time.Since(began) < 100*time.Microsecond; {
			allocated = make([]byte, 1<<14)
		}
		query.End()
		_, render := tracer.Start(ctx, "GET "+r.URL.Path) // a child with the name of an endpoint
		render.End()
	}))
	get := func(path string) {
		response, err := http.Get(server.URL + path) //nolint:noctx // It ends with the process.
		parent.Must(err)
		parent.Must(response.Body.Close())
	}
	get("/warm-up")
	parent.Send("ready")
	for {
		line, ok := parent.Receive()
		if !ok {
			return
		}
		var path string
		var n int
		_, err := fmt.Sscan(line, &path, &n)
		parent.Must(err)
		if n == 0 {
			go get(path)
		}
		for range n {
			get(path)
		}
		parent.Send("served")
	}
}

// startServer starts a serverRole that has served some requests.
func startServer(t *testing.T) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, roleServer, nil)
	c.Expect("ready")
	require.Equal(t, "served", c.Ask("/cart 100"))
	return c
}

// requests returns the number of requests to each endpoint, and requires that all are complete.
func requests[U any](t *testing.T, endpoints []U, of func(U) (string, report.RequestCount)) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	for _, e := range endpoints {
		name, n := of(e)
		require.NotNil(t, n.RequestsEnded, name)
		assert.False(t, n.RequestsIncomplete, name)
		all[name] += *n.RequestsEnded
	}
	return all
}

// TestRequestsOfCPUTime checks that a recording of CPU time has the number of requests that a service has served
// meanwhile, although it samples few of them.
func TestRequestsOfCPUTime(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startServer(t)
	r := startRecord(t, pidOf(c))
	r.awaitRecorded(t, c)
	require.Equal(t, "served", c.Ask("/cart 3000"))
	require.Equal(t, "served", c.Ask("/user 1000"))
	d := decodeRecord(t, r.interrupt(t))
	assert.Equal(t, map[string]uint64{"GET /cart": 3000, "GET /user": 1000},
		requests(t, d.Endpoints, func(e report.EndpointUse) (string, report.RequestCount) { return e.Endpoint, e.RequestCount }))

	r = startRecord(t, pidOf(c), "--filter", "endpoint=GET /cart")
	r.awaitRecorded(t, c)
	require.Equal(t, "served", c.Ask("/cart 1000"))
	d = decodeRecord(t, r.interrupt(t))
	require.Len(t, d.Endpoints, 1)
	assert.Nil(t, d.Endpoints[0].RequestsEnded, "the samples may not be those of all requests")
}

// TestRequestsOfWallClockTime checks the numbers of requests in several periods.
func TestRequestsOfWallClockTime(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	c := startServer(t)
	// A request that is in flight all the time gives its endpoint a row in each period.
	require.Equal(t, "served", c.Ask("/hold?forever 0"))
	r := start(t, "record", "--wall", "--json", "--repeat", "-F", "50", "-d", "200ms",
		"-o", filepath.Join(t.TempDir(), "wall.otlp"), pidOf(c))
	require.Eventually(t, func() bool { return strings.Contains(r.stdout.String(), "GET /hold") }, testenv.Patience, tick)
	require.Equal(t, "served", c.Ask("/hold 0"))
	require.Equal(t, "served", c.Ask("/hold 1"))
	require.Equal(t, "served", c.Ask("/cart 100"))
	var uses []report.WallUse
	held := func() (n uint64) {
		uses = nil
		for decoder := json.NewDecoder(strings.NewReader(r.stdout.String())); ; {
			var d wallDocument
			if err := decoder.Decode(&d); err != nil { // the end, or a document that is not complete yet
				return n
			}
			for _, e := range d.Endpoints {
				if uses = append(uses, e); e.Endpoint == "GET /hold" && e.RequestsEnded != nil {
					n += *e.RequestsEnded
				}
			}
		}
	}
	require.Eventually(t, func() bool { return held() >= 2 }, testenv.Patience, tick)
	got := r.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	held()
	served := requests(t, uses, func(u report.WallUse) (string, report.RequestCount) { return u.Endpoint, u.RequestCount })
	assert.EqualValues(t, 2, served["GET /hold"])
	assert.LessOrEqual(t, served["GET /cart"], uint64(100), "there may be periods without a row for it")
}
