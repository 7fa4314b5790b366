// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/spanctx"
)

// service is this process, which publishes spans while it has a provider.
type service struct {
	t        *testing.T
	process  *reader.Process
	provider *sdktrace.TracerProvider
	layout   *reader.ThreadLayout
	name     string
}

func newService(t *testing.T) *service {
	t.Helper()
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	s := &service{t: t, process: p, name: "shop"}
	t.Cleanup(func() {
		s.shutdown()
		require.NoError(t, p.Close())
	})
	s.refresh()
	return s
}

// publish creates a provider. Readers learn of it once refresh is called.
func (s *service) publish(opts ...spanctx.Option) {
	s.provider = sdktrace.NewTracerProvider(spanctx.WithPublishing(opts...))
	s.serve("warm-up", 1)
}

func (s *service) shutdown() {
	if s.provider != nil {
		require.NoError(s.t, s.provider.Shutdown(context.Background()))
	}
	s.provider = nil
}

func (s *service) refresh() {
	s.t.Helper()
	var err error
	s.layout, err = s.process.ThreadLayout(s.t.Context())
	require.NoError(s.t, err)
}

func (s *service) serve(endpoint string, n int) {
	for range n {
		_, span := s.provider.Tracer("test").Start(s.t.Context(), endpoint)
		span.End()
	}
}

func (s *service) read(p *Process, c *Counter) {
	p.Read(c, s.process, func() (*reader.ThreadLayout, string) { return s.layout, s.name })
}

// of returns the requests to each of these endpoints of shop: how many, with + if there may be more, or "unknown".
func of(p *Period, endpoints ...string) (texts []string) {
	rows := make([]tally.Name[tally.Count], len(endpoints))
	for i, name := range endpoints {
		rows[i] = tally.Name[tally.Count]{Service: "shop", Name: name}
	}
	Set(p, rows)
	for _, row := range rows {
		switch r := row.Requests; {
		case r == nil:
			texts = append(texts, "unknown")
		case r.AtLeast:
			texts = append(texts, fmt.Sprintf("%d+", r.Ended))
		default:
			texts = append(texts, strconv.FormatUint(r.Ended, 10))
		}
	}
	return texts
}

// TestPeriods checks that each request counts in the period in which it ended, and that requests before the first
// reading do not count.
func TestPeriods(t *testing.T) {
	s := newService(t)
	s.publish()
	s.refresh()
	s.serve("GET /", 7)
	var c Counter
	var p, other Process
	s.read(&p, nil)
	s.read(&other, nil)
	s.serve("GET /", 3)
	s.serve("new", 1)
	s.read(&p, &c)
	s.serve("GET /", 2)
	s.read(&p, &c)
	assert.Equal(t, []string{"5", "1", "0", "unknown"}, of(c.EndPeriod(), "GET /", "new", "warm-up", ""))
	assert.Equal(t, []string{"0"}, of(c.EndPeriod(), "GET /"), "a row may be added just after its counters were read")
	assert.Equal(t, []string{"unknown"}, of(c.EndPeriod(), "GET /"))
	s.serve("new", 4)
	s.read(&p, &c)
	s.read(&other, &c) // as if it were another process of the service
	assert.Equal(t, []string{"5", "9"}, of(c.EndPeriod(), "GET /", "new"))
}

// TestLosses checks that numbers are marked if requests are missing.
func TestLosses(t *testing.T) {
	for name, tt := range map[string]struct {
		run  func(s *service, p *Process, c *Counter)
		want string
	}{
		"the program begins to publish":           {func(*service, *Process, *Counter) {}, "2"},
		"the program ends":                        {func(_ *service, p *Process, c *Counter) { p.End(c, "shop") }, "2+"},
		"the service stops publishing":            {func(s *service, p *Process, c *Counter) { s.shutdown(); s.read(p, c) }, "2+"},
		"the service has stopped, which is known": {func(s *service, p *Process, c *Counter) { s.shutdown(); s.refresh(); s.read(p, c) }, "2+"},
		"it publishes again": {func(s *service, p *Process, c *Counter) {
			s.shutdown()
			s.publish()
			s.serve("GET /", 5)
			s.refresh()
			s.read(p, c)
		}, "7+"},
		"a process of an older version": {func(s *service, _ *Process, c *Counter) {
			old := *s.layout
			old.Requests = nil
			s.layout = &old
			s.read(new(Process), c)
		}, "2+"},
		"counters that cannot be read, in a later period": {func(s *service, p *Process, c *Counter) {
			layout, table := *s.layout, *s.layout.Requests
			table.Address = 8
			layout.Requests, s.layout = &table, &layout
			s.read(p, c)
			c.EndPeriod()
			s.read(p, c)
		}, "0+"},
		"a process without spans": {func(s *service, _ *Process, c *Counter) {
			s.layout = &reader.ThreadLayout{}
			s.read(new(Process), c)
		}, "2"},
		"another service ends": {func(s *service, _ *Process, c *Counter) {
			s.name = "cart"
			var p Process
			s.read(&p, c)
			p.End(c, "cart")
		}, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			var c Counter
			var p Process
			s.read(&p, &c)
			s.publish()
			s.serve("GET /", 2)
			s.refresh()
			s.read(&p, &c)
			tt.run(s, &p, &c)
			assert.Equal(t, []string{tt.want}, of(c.EndPeriod(), "GET /"))
			s.read(&p, &c)
			p.End(&c, "shop")
			p.End(&c, "shop")
		})
	}
}

// TestManyEndpoints checks that the memory is bounded.
func TestManyEndpoints(t *testing.T) {
	var c Counter
	for i := range 2 * maxEndpoints {
		c.add("shop", map[string]uint64{strconv.Itoa(i): 1})
	}
	period := c.EndPeriod()
	assert.Len(t, period.ended, maxEndpoints)
	assert.Equal(t, []string{"1+", "0+"}, of(period, "0", strconv.Itoa(maxEndpoints)))
}
