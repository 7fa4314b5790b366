// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/reader"
)

// advertised returns the integer advertised under key.
func advertised(t testing.TB, c *carriers, key string) uint64 {
	t.Helper()
	for _, kv := range c.advertisement(c.path.Features().Keys) {
		if string(kv.Key) == key {
			return uint64(kv.Value.AsInt64())
		}
	}
	require.Fail(t, key+" is not advertised")
	return 0
}

// namesOf returns the name and the endpoint for two encoded name numbers.
func namesOf(t testing.TB, c *carriers, numbers []byte) [2]string {
	t.Helper()
	var names [2]string
	for i := range names {
		var entry [256]byte
		at := advertised(t, c, "threadlocal.names.address") + 256 + 256*uint64(binary.LittleEndian.Uint16(numbers[2*i:]))
		_, err := remotemem.Of(os.Getpid()).ReadAt(entry[:], int64(at))
		require.NoError(t, err)
		names[i] = string(entry[1 : 1+entry[0]])
	}
	return names
}

// assertRead checks that package reader finds the span with this name and endpoint, both among the
// live spans and on the calling thread.
func assertRead(t testing.TB, span trace.Span, name, endpoint string) {
	t.Helper()
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	var got [][2]string
	spans, err := p.Spans(t.Context())
	require.NoError(t, err)
	for _, live := range spans {
		if live.SpanID == span.SpanContext().SpanID() {
			got = append(got, [2]string{live.Name, live.Endpoint})
		}
	}
	threads, err := p.Threads(t.Context())
	if !errors.Is(err, reader.ErrNoThreadContext) {
		require.NoError(t, err)
	}
	for _, thread := range threads {
		if thread.TID == syscall.Gettid() && thread.Span != nil && thread.Span.SpanID == span.SpanContext().SpanID() {
			got = append(got, [2]string{thread.Span.Name, thread.Span.Endpoint})
		}
	}
	want := [2]string{name, endpoint}
	assert.Contains(t, [][][2]string{{want}, {want, want}}, got)
}

// assertNames checks that all carriers publish a span with this name and endpoint for the calling
// goroutine, which is locked to its thread.
func (s *service) assertNames(t testing.TB, span trace.Span, name, endpoint string) {
	t.Helper()
	assertRead(t, span, name, endpoint)
	want := [2]string{name, endpoint}
	ref := uint64(s.path.Find(trace.ContextWithSpan(context.Background(), span)))
	var cell [128]byte
	_, err := remotemem.Of(os.Getpid()).ReadAt(cell[:], int64(s.cells.Address()+128+128*(ref>>1&(1<<19-1))))
	require.NoError(t, err)
	assert.Equal(t, want, namesOf(t, s.carriers, cell[0x68:]), "cell")
	if !s.carriers.records {
		return
	}
	require.Equal(t, number(span), recorded(t, s.cells.Address(), goid()))
	r := uint64(uintptr(unsafe.Pointer(installed())))
	var numbers [4]byte
	_, err = remotemem.Of(os.Getpid()).ReadAt(numbers[:], int64(r+advertised(t, s.carriers, "threadlocal.go.record_names_offset")))
	require.NoError(t, err)
	assert.Equal(t, want, namesOf(t, s.carriers, numbers[:]), "record")
	labels := map[string]string{}
	for key, value := range map[string]string{"span_name": name, "endpoint": endpoint} {
		if value != "" {
			labels[key] = value
		}
	}
	assert.Contains(t, labelsInSpan(t, span), labels, "labels")
}

// TestNamesOfSpans checks that spans are published with their names and endpoints, and are
// published with the same ones again after their children end.
func TestNamesOfSpans(t *testing.T) {
	for name, opts := range carrierOptions() {
		for _, sampler := range []sdktrace.Sampler{sdktrace.AlwaysSample(), sdktrace.NeverSample()} {
			t.Run(name+"/"+sampler.Description(), func(t *testing.T) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				s := serve(t, append(opts, WithSpanNames(true))...).publishAll(t, sampler)
				ctx, root := s.tracer.Start(context.Background(), "GET /cart/{id}")
				s.assertNames(t, root, "GET /cart/{id}", "GET /cart/{id}")
				inner, child := s.tracer.Start(ctx, "query")
				s.assertNames(t, child, "query", "GET /cart/{id}")
				_, remote := s.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, child.SpanContext().WithRemote(true)), "consume")
				s.assertNames(t, remote, "consume", "consume")
				remote.End()
				s.assertNames(t, child, "query", "GET /cart/{id}")
				apart(func() {
					defer Attach(inner).Detach()
					s.assertNames(t, child, "query", "GET /cart/{id}")
				})
				child.End()
				s.assertNames(t, root, "GET /cart/{id}", "GET /cart/{id}")
				root.End()
				// The parent's name is available although the parent has ended.
				_, late := s.tracer.Start(ctx, "late")
				s.assertNames(t, late, "late", "GET /cart/{id}")
				late.End()
				assert.Zero(t, s.processor.Stats().SpansWithoutName)
			})
		}
	}
}

// TestNamesFollowSetName checks that Refresh and Attach publish a name changed by SetName. A
// goroutine that returns to the span must publish the new name, and spans that start later must
// have it as their endpoint.
func TestNamesFollowSetName(t *testing.T) {
	for name, opts := range carrierOptions() {
		for _, sampler := range []sdktrace.Sampler{sdktrace.AlwaysSample(), sdktrace.NeverSample()} {
			t.Run(name+"/"+sampler.Description(), func(t *testing.T) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				s := serve(t, append(opts, WithSpanNames(true))...).publishAll(t, sampler)
				ctx, root := s.tracer.Start(context.Background(), "GET")
				before, child := s.tracer.Start(ctx, "auth")
				root.SetName("GET /cart/{id}")
				Refresh(ctx) // does nothing, because the goroutine is in another span
				s.assertNames(t, child, "auth", "GET")
				child.SetName("authenticate")
				Refresh(before)
				s.assertNames(t, child, "authenticate", "GET")
				apart(func() {
					defer Attach(ctx).Detach()
					s.assertNames(t, root, "GET /cart/{id}", "GET /cart/{id}")
				})
				_, second := s.tracer.Start(ctx, "query")
				s.assertNames(t, second, "query", "GET /cart/{id}")
				second.End()
				child.End()
				s.assertNames(t, root, "GET /cart/{id}", "GET /cart/{id}")
				root.SetName("")
				Refresh(ctx)
				s.assertNames(t, root, "", "")
				// The endpoint of a request that has ended is its final name.
				root.SetName("GET /orders")
				root.End()
				ctx, mail := s.tracer.Start(ctx, "mail")
				s.assertNames(t, mail, "mail", "GET /orders")
				_, template := s.tracer.Start(ctx, "template")
				s.assertNames(t, template, "template", "GET /orders")
				template.End()
				mail.End()
			})
		}
	}
}

// TestNamesBesideOtherLabels checks that names replace user labels with the same keys and leave
// room for all other user labels, and that attributes with the same keys as names are not
// published.
func TestNamesBesideOtherLabels(t *testing.T) {
	s := serve(t, WithSpanNames(true), WithAttributeKeys("endpoint", "tenant", "span_name", "zone"))
	require.NoError(t, s.processor.AddAttributeKeys("endpoint"))
	assert.Equal(t, []string{"tenant", "zone"}, advertisedKeys(t, s.carriers))
	ctx := with(context.Background(), "endpoint", "mine", "tenant", "7", "zone", "eu")
	labels := func(n int) (all map[string]string) {
		t.Helper()
		set := []string{"endpoint", "user's"}
		for i := range n - 1 {
			set = append(set, strconv.Itoa(i), "x")
		}
		pprof.Do(context.Background(), pprof.Labels(set...), func(context.Context) {
			_, span := s.tracer.Start(ctx, strings.Repeat("n", 60))
			defer span.End()
			shown := labelsInSpan(t, span)
			require.Len(t, shown, 1)
			all = shown[0]
		})
		for i := range n - 1 {
			assert.Contains(t, all, strconv.Itoa(i))
			delete(all, strconv.Itoa(i))
		}
		return all
	}
	name := strings.Repeat("n", 47)
	assert.Equal(t, map[string]string{"span_name": name, "endpoint": name, "tenant": "7", "zone": "eu"}, labels(1))
	assert.Equal(t, map[string]string{"span_name": name, "endpoint": name, "tenant": "7"}, labels(5))
	assert.Equal(t, map[string]string{"span_name": name, "endpoint": "user's"}, labels(7))
	assert.Equal(t, map[string]string{"endpoint": "user's"}, labels(9))
}

// WithSpanNames(false) publishes no name, and attributes may have the keys of names.
func TestWithoutNames(t *testing.T) {
	s := serve(t, WithSpanNames(false), WithAttributeKeys("endpoint"))
	_, span := s.tracer.Start(with(context.Background(), "endpoint", "mine"), "secret")
	defer span.End()
	assert.Equal(t, []map[string]string{{"endpoint": "mine"}}, labelsInSpan(t, span))
	for _, kv := range s.carriers.advertisement(s.path.Features().Keys) {
		assert.NotContains(t, string(kv.Key), "threadlocal.names.")
		assert.NotContains(t, string(kv.Key), "threadlocal.requests.")
	}
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	assert.NotContains(t, string(maps), "OTELCTX_NAMES")
	assert.True(t, bytes.Contains(maps, []byte("OTELCTX_SPANS")))
}
