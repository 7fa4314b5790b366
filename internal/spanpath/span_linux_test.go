// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package spanpath

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/vma"
)

// These tests stop in the middle of a function of the path. The tests of packages spanctx and
// universalprofiling cover everything that can be observed from outside.

// newPath returns a path with goroutine records, and a tracer whose spans it publishes.
func newPath(t *testing.T) (*Path, trace.Tracer) {
	t.Helper()
	handle, err := providers.Spans.Open(nil, nil)
	require.NoError(t, err)
	defer providers.Lock()()
	p, err := Join(goruntime.Calibrate(), vma.Published)
	require.NoError(t, err)
	p.Change(func(f *Features) { f.Records = true })
	t.Cleanup(func() {
		require.NoError(t, handle.Shutdown())
		defer providers.Lock()()
		assert.NoError(t, p.Leave(func(f *Features) { f.Records = false }))
	})
	return p, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(processor{p, handle})).Tracer("")
}

type processor struct {
	path   *Path
	handle *providers.Handle
}

func (p processor) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	p.path.Start(ctx, s, p.handle.Started(s))
}
func (p processor) OnEnd(s sdktrace.ReadOnlySpan)  { p.path.End(s) }
func (processor) Shutdown(context.Context) error   { return nil }
func (processor) ForceFlush(context.Context) error { return nil }

// apart runs f on a new goroutine without labels, and waits for it.
func apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		goruntime.SetLabels(nil)
		f()
	}()
	<-done
}

// installed returns the record that is installed on the calling goroutine, or nil.
func installed() *gorecord.Record {
	_, r := gorecord.User()
	return r
}

// TestLeaveWhileOthersEnd checks that a goroutine can follow the links between the records of its
// spans while another goroutine ends these spans, which clears the links.
func TestLeaveWhileOthersEnd(t *testing.T) {
	p, tracer := newPath(t)
	for range testenv.Rounds(300, 10_000) {
		apart(func() {
			ctx, spans := context.Background(), make([]trace.Span, 32)
			for i := range spans {
				ctx, spans[i] = tracer.Start(ctx, "span")
			}
			var g goroutine
			p.locate(&g)
			var ended atomic.Bool
			go func() {
				for _, s := range spans {
					s.End()
				}
				ended.Store(true)
			}()
			for !ended.Load() {
				moved := g
				p.moveToNearest(&moved)
				p.spans.Leave(g.active, ^spantable.Ref(1), g.Goid) // a ref that names no span
			}
		})
	}
}

// TestReturnToEndingSpan checks that a goroutine still leads readers to the ancestors if another
// goroutine ends a span while the goroutine returns to it.
func TestReturnToEndingSpan(t *testing.T) {
	p, tracer := newPath(t)
	apart(func() {
		ctx, outer := tracer.Start(context.Background(), "outer")
		_, middle := tracer.Start(ctx, "middle")
		var g goroutine
		p.locateLive(&g) // as the end of a child does
		apart(func() { middle.End() })
		p.publish(&g, nil, 0)
		active, _ := p.goroutines.Load(g.Goid, uintptr(g.G))
		assert.NotZero(t, active, "the goroutine is in no span")
		p.locateLive(&g)
		assert.Equal(t, p.Find(ctx), g.active.Ref())
		outer.End()
	})
}

// TestStartedMeanwhile checks that a span is withdrawn if the path is closed while the span starts, even if
// the memory of its cell was replaced.
func TestStartedMeanwhile(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced=%v", replaced), func(t *testing.T) {
			p, tracer := newPath(t)
			apart(func() {
				defer goruntime.SetLabels(nil)
				_, span := tracer.Start(context.Background(), "span")
				var g goroutine
				p.locate(&g)
				record := installed()
				p.features.Store(&Features{Records: true, hadRecords: true, closed: true})
				if replaced {
					require.NoError(t, p.spans.Close())
				}
				p.startedMeanwhile(&g, record.Ref(), record, new(providers.Reference))
				assert.True(t, record.Ended())
				assert.False(t, p.spans.Live(record.Ref()))
				span.End()
			})
		})
	}
}

// TestEvictedRecordEndsBeforeCell checks that eviction invalidates the record before it ends the
// cell: End returns at once if the cell has ended.
func TestEvictedRecordEndsBeforeCell(t *testing.T) {
	p, tracer := newPath(t)
	apart(func() {
		defer goruntime.SetLabels(nil)
		var round atomic.Uint64 // the span to evict, or 0
		done := make(chan struct{})
		defer close(done)
		go func() {
			for last := spantable.Ref(0); ; {
				select {
				case <-done:
					return
				default:
				}
				if ref := spantable.Ref(round.Load()); ref != last {
					last = ref
					if p.Evict(last) {
						p.spans.Free(last) // otherwise the cells would run out
					}
				}
			}
		}()
		shown := 0
		for range testenv.Rounds(40_000, 200_000) {
			_, span := tracer.Start(context.Background(), "span")
			record := installed()
			round.Store(uint64(record.Ref()))
			span.End()
			if !record.Ended() {
				shown++
			}
		}
		assert.Zero(t, shown, "spans whose record was valid after End")
	})
}

// TestRecordsAreNotKeptAfterABurst checks that after a burst of spans, no more records stay in
// memory than the number of free cells that the Ps keep.
func TestRecordsAreNotKeptAfterABurst(t *testing.T) {
	p, tracer := newPath(t)
	kept := 64 * max(runtime.GOMAXPROCS(0), runtime.NumCPU())
	apart(func() {
		spans := make([]trace.Span, kept+1000)
		for i := range spans {
			_, spans[i] = tracer.Start(context.Background(), "span")
		}
		for _, span := range slices.Backward(spans) {
			span.End()
		}
	})
	n := 0
	for i := range p.records {
		if c := p.records[i].Load(); c != nil {
			for j := range c {
				if c[j].Load() != nil {
					n++
				}
			}
		}
	}
	assert.LessOrEqual(t, n, kept)
}

// TestFeaturesTurnedOff checks that nothing stays published in the middle of a span when records are turned
// off, and that they are published again for spans that start after they are turned on.
func TestFeaturesTurnedOff(t *testing.T) {
	p, tracer := newPath(t)
	change := func(records bool) {
		defer providers.Lock()()
		p.Change(func(f *Features) { f.Records = records })
	}
	apart(func() {
		ctx, a := tracer.Start(context.Background(), "a")
		before := installed()
		change(false)
		assert.True(t, before.Ended())
		assert.True(t, p.spans.Live(before.Ref()), "the span itself")
		_, b := tracer.Start(ctx, "b")
		assert.Nil(t, p.record(p.Find(trace.ContextWithSpan(ctx, b))))
		b.End()
		assert.Nil(t, goruntime.Labels(), "the labels are the user's again")
		change(true)
		_, c := tracer.Start(ctx, "c")
		assert.False(t, installed().Ended())
		c.End()
		a.End()
		assert.Nil(t, goruntime.Labels())
	})
}
