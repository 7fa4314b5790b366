// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"

	"go.opentelemetry.io/contrib/bridges/otelslog"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/scopedattr"
)

// appKey and userKey are the attributes with the names of a request's application and user. Metrics
// have only appKey, because there are few applications but many users.
const (
	appKey  = attribute.Key("http.app")
	userKey = attribute.Key("enduser.id")
)

// authPath is the path of the service that both applications call.
const authPath = "/auth/"

// newServer returns a handler that hosts the two applications and the service auth. url is the
// address at which the applications reach the server.
func newServer(t *telemetry, url string) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.Handle(authPath, t.instrument(http.HandlerFunc(auth)))
	for name, page := range map[string]page{"shop": (*application).shop, "blog": (*application).blog} {
		app, err := newApplication(t, page, url+authPath)
		if err != nil {
			return nil, err
		}
		mux.Handle("/"+name+"/", hosted(name, t.instrument(app)))
	}
	return mux, nil
}

// auth accepts every user.
func auth(w http.ResponseWriter, _ *http.Request) {
	work("password")
	w.WriteHeader(http.StatusNoContent)
}

// hosted sets the attributes appKey and userKey on the context of each request, and thereby on all
// telemetry of the request. Nothing else is needed: neither the application nor the libraries know
// these attributes.
func hosted(app string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := scopedattr.ContextWithAttributes(r.Context(), appKey.String(app), userKey.String(r.FormValue("user")))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// application is a hosted application, with its own page.
type application struct {
	page   page
	tracer trace.Tracer
	logger *slog.Logger
	pages  metric.Int64Counter
	client *http.Client
	auth   string // URL of auth
}

// page renders an application's response.
type page func(a *application, ctx context.Context) string

func newApplication(t *telemetry, page page, auth string) (*application, error) {
	pages, err := t.meters.Meter("app").Int64Counter("app.pages")
	if err != nil {
		return nil, err
	}
	return &application{
		page:   page,
		tracer: t.tracers.Tracer("app"),
		logger: otelslog.NewLogger("app", otelslog.WithLoggerProvider(t.loggers)),
		pages:  pages,
		client: &http.Client{Transport: t.transport()},
		auth:   auth,
	}, nil
}

func (a *application) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	if err := get(ctx, a.client, a.auth); err != nil {
		a.logger.ErrorContext(ctx, "no answer from auth", "error", err)
		http.Error(w, "try again later", http.StatusBadGateway)
		return
	}
	page := a.page(a, ctx)
	a.pages.Add(ctx, 1, metric.WithAttributes(attribute.String("layout", "wide")))
	a.logger.InfoContext(ctx, "rendered a page", "bytes", len(page))
	// An error means that the client has disconnected.
	_, _ = io.WriteString(w, page)
}

// shop renders the page of the shop. Two goroutines search a warehouse each.
func (a *application) shop(ctx context.Context) string {
	_, span := a.tracer.Start(ctx, "search")
	defer span.End()
	var found [2][]byte
	var searching sync.WaitGroup
	for i := range found {
		// A goroutine inherits the span of the goroutine that starts it.
		searching.Go(func() { found[i] = work("warehouse") })
	}
	searching.Wait()
	return fmt.Sprintf("%x\n", found)
}

// blog renders the page of the blog. It works in the span of the request and in a child span.
func (a *application) blog(ctx context.Context) string {
	text := work("article")
	_, span := a.tracer.Start(ctx, "render")
	defer span.End()
	return fmt.Sprintf("%x\n", work(string(text)))
}

// work keeps the CPU busy.
func work(input string) []byte {
	sum := sha256.Sum256([]byte(input))
	for range 10_000 {
		sum = sha256.Sum256(sum[:])
	}
	return sum[:]
}

func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// instrument wraps a handler so that each request creates a span and measurements.
func (t *telemetry) instrument(next http.Handler) http.Handler {
	return otelhttp.NewHandler(next, "serve",
		otelhttp.WithTracerProvider(t.tracers), otelhttp.WithMeterProvider(t.meters), otelhttp.WithPropagators(t.propagator))
}

// transport returns a transport that creates a span and measurements for each outgoing request, and
// propagates the trace.
func (t *telemetry) transport() http.RoundTripper {
	return otelhttp.NewTransport(http.DefaultTransport,
		otelhttp.WithTracerProvider(t.tracers), otelhttp.WithMeterProvider(t.meters), otelhttp.WithPropagators(t.propagator))
}
