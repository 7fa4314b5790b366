// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"go.uber.org/zap"

	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// service returns the resource attributes of a service.
func service(name string) []*commonpb.KeyValue {
	return []*commonpb.KeyValue{{Key: "service.name", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: name}}}}
}

// world is a set of fake processes with a fake clock.
type world struct {
	*contexts

	set *componenttest.Telemetry

	mu     sync.Mutex
	time   time.Time
	states map[int]*state
}

// state is the state of a fake process. The process publishes a service name, unless err is set,
// which readers then get.
type state struct {
	world     *world
	name      string
	published uint64
	err       error
	// opened is the number of open sources for the process.
	opened int
	// stalled, if not nil, blocks readers until it is closed.
	stalled chan struct{}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{set: componenttest.NewTelemetry(), states: map[int]*state{}, time: time.Unix(1, 0)}
	tel, err := newTelemetry(w.set.NewTelemetrySettings().MeterProvider)
	require.NoError(t, err)
	w.contexts = newContexts(tel, zap.NewNop())
	w.now = func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.time
	}
	w.open = func(pid int) (source, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		s := w.states[pid]
		if s == nil {
			return nil, reader.ErrProcessGone
		}
		s.opened++
		return s, nil
	}
	t.Cleanup(w.close)
	return w
}

func (w *world) change(pid int, f func(*state)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.states[pid]
	if s == nil {
		s = &state{world: w}
		w.states[pid] = s
	}
	f(s)
}

func (w *world) publish(pid int, name string) {
	w.change(pid, func(s *state) { s.name, s.published, s.err = name, s.published+1, nil })
}

func (w *world) fail(pid int, err error) { w.change(pid, func(s *state) { s.err = err }) }

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.time = w.time.Add(d)
}

// serviceAfterSample takes a sample of a process and returns the service name that the next report
// would contain.
func (w *world) serviceAfterSample(t *testing.T, pid int) string {
	t.Helper()
	w.sampled(pid)
	for _, kv := range w.current(t.Context(), []int{pid})[0] {
		return kv.GetValue().GetStringValue()
	}
	return ""
}

func (s *state) get() (string, uint64, error) {
	s.world.mu.Lock()
	stalled := s.stalled
	s.world.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	return s.name, s.published, s.err
}

func (s *state) ProcessContext(context.Context) (*reader.ProcessContext, error) {
	name, published, err := s.get()
	if err != nil {
		return nil, err
	}
	return &reader.ProcessContext{PublishedAtNS: published, Resource: &resourcepb.Resource{Attributes: service(name)}}, nil
}

func (s *state) Changed(published uint64) (bool, error) {
	_, now, err := s.get()
	if err != nil {
		return false, err
	}
	return now != published, nil
}

func (s *state) Close() error {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.opened--
	return nil
}

func TestContextsAreKeptCurrent(t *testing.T) {
	w := newWorld(t)
	w.publish(1, "shop")
	assert.Equal(t, "shop", w.serviceAfterSample(t, 1))
	assert.Equal(t, "shop", w.serviceAfterSample(t, 1))
	assert.Equal(t, int64(1), counted(t, w.set, "otelcol_otelctx_contexts_read"), "unchanged contexts are not read again")
	w.publish(1, "shop 2")
	assert.Equal(t, "shop 2", w.serviceAfterSample(t, 1))
	w.fail(1, reader.ErrBusy)
	assert.Equal(t, "shop 2", w.serviceAfterSample(t, 1), "an update is in progress")
	w.fail(1, reader.ErrProcessGone)
	assert.Equal(t, "shop 2", w.serviceAfterSample(t, 1), "samples were taken before the end")
	assert.Zero(t, w.states[1].opened)
	w.publish(1, "another process with this id")
	w.pass(lastRetry)
	assert.Equal(t, "another process with this id", w.serviceAfterSample(t, 1))
	w.fail(1, reader.ErrNoContext)
	assert.Empty(t, w.serviceAfterSample(t, 1), "the context was withdrawn")
	assert.Zero(t, w.states[1].opened)
}

func TestProcessesWithoutContextAreRetried(t *testing.T) {
	w := newWorld(t)
	w.fail(1, reader.ErrNoContext)
	assert.Empty(t, w.serviceAfterSample(t, 1))
	w.publish(1, "late")
	assert.Empty(t, w.serviceAfterSample(t, 1), "not every sample may cause a scan of all mappings")
	w.pass(2 * firstRetry)
	assert.Equal(t, "late", w.serviceAfterSample(t, 1))
}

func TestContextErrorsAreCounted(t *testing.T) {
	w := newWorld(t)
	w.publish(1, "shop")
	assert.Equal(t, "shop", w.serviceAfterSample(t, 1))
	w.fail(1, reader.ErrInvalid)
	assert.Empty(t, w.serviceAfterSample(t, 1), "an unreadable context must not be kept")
	w.fail(2, reader.ErrNotPermitted)
	assert.Empty(t, w.serviceAfterSample(t, 2))
	w.fail(3, reader.ErrNoContext)
	assert.Empty(t, w.serviceAfterSample(t, 3), "a process without a context is not an error")
	assert.Equal(t, int64(2), counted(t, w.set, "otelcol_otelctx_context_errors"))
}

func TestStalledProcessDelaysNoOther(t *testing.T) {
	w := newWorld(t)
	stalled := make(chan struct{})
	w.publish(1, "stalled")
	w.change(1, func(s *state) { s.stalled = stalled })
	w.publish(2, "shop")
	w.sampled(1)
	assert.Equal(t, "shop", w.serviceAfterSample(t, 2))
	w.close()
	close(stalled)
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.states[1].opened == 0
	}, testenv.Patience, time.Millisecond, "the descriptor is closed when the read ends")
}

func TestProcessesWithoutSamplesAreForgotten(t *testing.T) {
	w := newWorld(t)
	w.publish(1, "shop")
	assert.Equal(t, "shop", w.serviceAfterSample(t, 1))
	w.pass(2 * expiry)
	assert.Empty(t, w.current(t.Context(), nil))
	w.contexts.mu.Lock()
	defer w.contexts.mu.Unlock()
	assert.Empty(t, w.processes)
	assert.Zero(t, w.states[1].opened)
}

func TestEnricher(t *testing.T) {
	p, err := resourcepublisher.New(resource.NewSchemaless(
		attribute.String("service.name", "shop"), attribute.StringSlice("list", []string{"a", "b"}),
		attribute.Bool("bool", true), attribute.Int("int", 1), attribute.Float64("double", 1.5),
		attribute.Int("process.pid", 1), attribute.String("container.id", "claimed")))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Shutdown(context.Background())) })

	tel, err := newTelemetry(componenttest.NewNopTelemetrySettings().MeterProvider)
	require.NoError(t, err)
	known := newContexts(tel, zap.NewNop())
	t.Cleanup(known.close)
	sink := new(consumertest.ProfilesSink)
	e := &enricher{Profiles: sink, contexts: known}
	profiles := pprofile.NewProfiles()
	first := profiles.ResourceProfiles().AppendEmpty().Resource().Attributes()
	first.PutInt("process.pid", int64(os.Getpid()))
	first.PutStr("container.id", "seen")
	profiles.ResourceProfiles().AppendEmpty().Resource().Attributes().PutInt("process.pid", 0)
	profiles.ResourceProfiles().AppendEmpty()

	known.sampled(os.Getpid())
	known.sampled(0)
	require.NoError(t, e.ConsumeProfiles(t.Context(), profiles))
	resources := sink.AllProfiles()[0].ResourceProfiles()
	got := resources.At(0).Resource().Attributes().AsRaw()
	for _, k := range []string{"telemetry.sdk.name", "telemetry.sdk.language", "telemetry.sdk.version"} {
		delete(got, k)
	}
	assert.Equal(t, map[string]any{
		"service.name": "shop", "list": []any{"a", "b"}, "bool": true, "int": int64(1), "double": 1.5,
		"process.pid": int64(os.Getpid()), "container.id": "seen",
	}, got)
	assert.Equal(t, map[string]any{"process.pid": int64(0)}, resources.At(1).Resource().Attributes().AsRaw())
	assert.Empty(t, resources.At(2).Resource().Attributes().AsRaw())
}
