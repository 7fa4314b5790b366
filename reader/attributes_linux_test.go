// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/contextattr"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/scope"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// scopedService is the child process whose spans have context-scoped attributes. One goroutine
// executes the test's orders, and spins on its thread between them.
func scopedService(p *childproc.Parent) {
	order, _ := p.Receive()
	opts := []spanctx.Option{spanctx.WithAttributeKeys("http.app", "tenant")}
	switch order {
	case "slots":
		opts = append(opts, spanctx.WithGoroutineRecord(false), spanctx.WithGoroutineTable(false))
	case "goroutine-table":
		opts = append(opts, spanctx.WithGoroutineRecord(false), spanctx.WithGoroutineTable(true))
	}
	processor, err := spanctx.NewSpanProcessor(opts...)
	p.Must(err)
	_, err = resourcepublisher.NewPublisher(resource.Empty())
	p.Must(err)
	s := &scoped{
		tracer:    sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(processor)).Tracer("test"),
		processor: processor, ctx: []context.Context{context.Background()},
		orders: make(chan []string, 1),
	}
	go s.run()
	for line, ok := "", true; ok; line, ok = p.Receive() {
		turns := s.turns.Load()
		s.orders <- strings.Fields(line)
		atomic.StoreUint32(&s.busy, 0)
		for s.turns.Load() == turns {
			time.Sleep(100 * time.Microsecond)
		}
		p.Must(s.err)
		p.Send("%s", s.answer)
	}
}

type scoped struct {
	tracer    trace.Tracer
	processor *spanctx.SpanProcessor
	// ctx is a stack of contexts. undo has a function for each context except the first: it ends
	// the span or the attachment that came with the context.
	ctx  []context.Context
	undo []func()

	orders chan []string
	turns  atomic.Uint64
	busy   uint32
	err    error
	answer string
}

func (s *scoped) run() {
	runtime.LockOSThread()
	for order := range s.orders {
		s.err, s.answer = nil, ""
		if len(order) > 0 {
			s.do(order[0], order[1:])
		}
		if s.answer == "" {
			self := goruntime.Calibrate().Self()
			s.answer = fmt.Sprintf("%d %d", self.TID, self.Goid)
		}
		atomic.StoreUint32(&s.busy, 1)
		s.spin()
	}
}

// spin increments turns, and then keeps the goroutine on its thread until the next order. See
// startActors.
//
//go:norace
func (s *scoped) spin() {
	s.turns.Add(1)
	for load(&s.busy) == 1 {
	}
}

// do executes an order: scope key=value..., start, attach, undo, keys key...
func (s *scoped) do(order string, words []string) {
	ctx := s.ctx[len(s.ctx)-1]
	undo := func() {}
	switch order {
	case "scope":
		for _, word := range words {
			key, value, _ := strings.Cut(word, "=")
			ctx = contextattr.With(ctx, attribute.String(key, value))
		}
	case "start":
		var span trace.Span
		ctx, span = s.tracer.Start(ctx, "span")
		undo = func() { span.End() }
		id := span.SpanContext().SpanID()
		s.answer = strconv.FormatUint(binary.BigEndian.Uint64(id[:]), 10)
	case "attach":
		attached := spanctx.Attach(ctx)
		undo = attached.Detach
	case "undo":
		s.undo[len(s.undo)-1]()
		s.undo, s.ctx = s.undo[:len(s.undo)-1], s.ctx[:len(s.ctx)-1]
		return
	case "keys":
		var keys []attribute.Key
		for _, word := range words {
			keys = append(keys, attribute.Key(word))
		}
		s.err = s.processor.AddAttributeKeys(keys...)
		return
	}
	s.ctx, s.undo = append(s.ctx, ctx), append(s.undo, undo)
}

// TestScopedAttributes checks that a reader always finds the attributes of the active context,
// including attributes whose keys are published only after the reader has read the keys.
func TestScopedAttributes(t *testing.T) {
	for order, carrier := range map[string]CarrierKind{
		"default": GoroutineRecord, "slots": ThreadSlots, "goroutine-table": GoroutineTable,
	} {
		t.Run(order, func(t *testing.T) {
			c, p, who := startScoped(t, order)
			shows := func(id string, kvs ...string) {
				t.Helper()
				shown := withSpans(threadsOf(t, p))
				require.Len(t, shown, 1)
				assert.Equal(t, who.goid, shown[0].Goroutine)
				span := shown[0].Span
				assert.True(t, span.Proven)
				assert.Equal(t, carrier, span.Carrier)
				assert.Equal(t, id, strconv.FormatUint(binary.BigEndian.Uint64(span.SpanID[:]), 10))
				var got []string
				for _, a := range span.Attributes {
					got = append(got, a.Key+"="+a.Value)
				}
				slices.Sort(got)
				assert.Equal(t, kvs, got)
			}
			c.Ask("scope http.app=shop user=alice")
			parent := c.Ask("start")
			shows(parent, "http.app=shop")
			c.Ask("scope tenant=7 http.app=cart")
			shows(parent, "http.app=shop")
			child := c.Ask("start")
			shows(child, "http.app=cart", "tenant=7")
			c.Ask("undo")
			shows(parent, "http.app=shop")
			c.Ask("attach")
			shows(parent, "http.app=cart", "tenant=7")
			c.Ask("undo")
			shows(parent, "http.app=shop")

			c.Ask("keys user")
			shows(parent, "http.app=shop")
			child = c.Ask("start")
			shows(child, "http.app=cart", "tenant=7", "user=alice")
			c.Ask("keys more")
			c.Ask("undo")
			c.Ask("scope more=1 user= tenant=" + strings.Repeat("é", 40))
			child = c.Ask("start")
			shows(child, "http.app=cart", "more=1", "tenant="+strings.Repeat("é", 40), "user=")
		})
	}
}

// startScoped starts and opens a child process that runs scopedService. order selects its carrier.
func startScoped(t *testing.T, order string) (*childproc.Child, *Process, identity) {
	t.Helper()
	c := childproc.Start(t, "scoped", notPreempted)
	who := askf(t, c, "%s", order)
	t.Cleanup(c.Done)
	return c, open(t, c.PID()), who
}

// attributesOf returns the attributes of the only span in threads.
func attributesOf(t *testing.T, threads []Thread) []ThreadAttribute {
	t.Helper()
	require.Len(t, threads, 1)
	return threads[0].Span.Attributes
}

// TestAllKeys checks that a process can publish 256 keys of attributes, and that an attribute with
// one more key is left out.
func TestAllKeys(t *testing.T) {
	c, p, _ := startScoped(t, "default")
	c.Ask("scope http.app=shop key.2=third key.255=last key.256=refused")
	c.Ask("start")
	threadsOf(t, p) // reads the first keys
	var keys []string
	for i := 2; i <= scope.MaxKeys; i++ {
		keys = append(keys, fmt.Sprintf("key.%d", i))
	}
	c.Ask("keys %s", strings.Join(keys, " "))
	c.Ask("start")
	assert.Equal(t, []ThreadAttribute{{"http.app", "shop"}, {"key.2", "third"}, {"key.255", "last"}},
		attributesOf(t, withSpans(threadsOf(t, p))))
}

// TestKeysAreRefreshed checks that the reader reads the keys again if a span has an attribute whose
// key is unknown.
func TestKeysAreRefreshed(t *testing.T) {
	c, p, _ := startScoped(t, "default")
	c.Ask("scope http.app=shop user=alice")
	c.Ask("start")
	old, err := p.threadView(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"http.app", "tenant"}, old.keys)
	c.Ask("keys user")
	c.Ask("start")
	threads := withSpans(threadsOf(t, p))
	// Decode the span with the old keys, as if the key "user" had been published between the reads
	// of the keys and of the span.
	threads[0].Span.Attributes = nil
	p.nameAttributes(t.Context(), old, threads)
	assert.Equal(t, []ThreadAttribute{{"http.app", "shop"}, {"user", "alice"}}, attributesOf(t, threads))
}
