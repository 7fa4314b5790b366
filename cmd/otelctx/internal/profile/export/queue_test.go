// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestQueueRetries checks that no samples are lost if the collector is not ready at first.
func TestQueueRetries(t *testing.T) {
	byEachProtocol(t, func(t *testing.T, listen func(*testing.T, *server, *tls.Config) string) {
		t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60000") // The machine may be busy.
		exhausted, err := status.New(codes.ResourceExhausted, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)})
		require.NoError(t, err)
		starting := status.Error(codes.Unavailable, "starting")
		s := &server{answers: []error{starting, starting, exhausted.Err()}}
		d := sendBy(t, client(t, "http://"+listen(t, s, nil)), recording(t, 3), recording(t, 4))
		assert.EqualValues(t, 14, d.Sent)
		assert.Zero(t, d.Dropped)
		assert.Len(t, s.requests, 2)
		assert.Equal(t, 5, s.attempts)
		require.Len(t, d.Retried, 2, "each error once")
		assert.ErrorContains(t, errors.Join(d.Retried...), "starting")
		assert.ErrorContains(t, errors.Join(d.Retried...), "later")
	})
}

// TestQueueCountsRejectedSamples checks that samples rejected by the collector count as dropped, and that the
// others are sent.
func TestQueueCountsRejectedSamples(t *testing.T) {
	s := &server{answers: []error{status.Error(codes.InvalidArgument, "not this one")}}
	d := sendBy(t, client(t, "http://"+s.listen(t)), recording(t, 3), recording(t, 3))
	assert.EqualValues(t, 6, d.Sent)
	assert.EqualValues(t, 6, d.Dropped)
	require.Len(t, d.Reasons, 1)
	require.ErrorContains(t, d.Reasons[0], "not this one")
}

// TestQueueCountsOversizedSamples checks that samples too large for any request are dropped and counted.
func TestQueueCountsOversizedSamples(t *testing.T) {
	c := client(t, "http://"+(&server{}).listen(t))
	c.maxRequest = 1
	d := sendBy(t, c, recording(t, 3))
	assert.EqualValues(t, 6, d.Dropped)
	assert.Zero(t, d.Sent)
	require.Len(t, d.Reasons, 1)
	assert.ErrorContains(t, d.Reasons[0], "one sample takes")
}

// picky is a collector that answers each request with a certain number of samples with an error that allows retries.
type picky struct {
	*server
	refused uint64
}

func (p *picky) Export(ctx context.Context, r *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
	if profile.Samples(&profilespb.ProfilesData{ResourceProfiles: r.GetResourceProfiles(), Dictionary: r.GetDictionary()}) == p.refused {
		return nil, status.Error(codes.Unavailable, "not this one")
	}
	return p.server.Export(ctx, r)
}

// TestQueueIsNotBlockedByRefusedRequests checks that requests that the collector keeps refusing do not block
// other requests.
func TestQueueIsNotBlockedByRefusedRequests(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")
	p := &picky{server: &server{}, refused: 6}
	q := NewQueue(client(t, "http://"+serve(t, p)))
	for range 2 * senders {
		q.Add(recording(t, 3))
	}
	for range senders {
		q.Add(recording(t, 4))
	}
	var sent uint64
	require.Eventually(t, func() bool {
		sent += q.Delivery().Sent
		return sent == 8*senders
	}, testenv.Patience, time.Millisecond)
	q.giveUp(errNoTime)
	require.NoError(t, q.Close(t.Context()))
	d := q.Delivery()
	assert.EqualValues(t, 6*2*senders, d.Dropped)
	assert.Zero(t, d.Sent+d.Waiting)
	// Requests that had no response yet were dropped with errNoTime.
	reasons := slices.DeleteFunc(d.Reasons, func(reason error) bool { return errors.Is(reason, errNoTime) })
	require.Len(t, reasons, 1)
	assert.ErrorContains(t, reasons[0], "not this one")
}

// TestQueueCloseIsInterruptible checks that Close stops waiting for an unresponsive collector when its context
// is canceled.
func TestQueueCloseIsInterruptible(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2000000000")
	h := &held{server: &server{}, arrived: make(chan struct{}, 1), answer: make(chan struct{})}
	q := NewQueue(client(t, "http://"+serve(t, h)))
	defer close(h.answer)
	q.Add(recording(t, 3))
	<-h.arrived
	ctx, interrupt := context.WithCancel(t.Context())
	closed := make(chan error)
	go func() { closed <- q.Close(ctx) }()
	require.Eventually(t, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.closed
	}, testenv.Patience, time.Millisecond)
	interrupt()
	require.NoError(t, <-closed)
	assert.EqualValues(t, 6, q.Delivery().Dropped)
}

// TestLongMessagesAreTruncated checks that a report contains only the beginning of a long message from the
// collector.
func TestLongMessagesAreTruncated(t *testing.T) {
	long := strings.Repeat("x", maxResponse/2)
	byEachProtocol(t, func(t *testing.T, listen func(*testing.T, *server, *tls.Config) string) {
		for name, s := range map[string]*server{
			"refused":  {answers: []error{status.Error(codes.ResourceExhausted, long)}},
			"rejected": {partial: &collectorpb.ExportProfilesPartialSuccess{RejectedProfiles: 1, ErrorMessage: long}},
			"warning":  {partial: &collectorpb.ExportProfilesPartialSuccess{ErrorMessage: long}},
		} {
			t.Run(name, func(t *testing.T) {
				d := sendBy(t, client(t, "http://"+listen(t, s, nil)), recording(t, 3))
				texts := d.Warnings
				for _, err := range slices.Concat(d.Reasons, d.Retried) {
					texts = append(texts, err.Error())
				}
				require.Len(t, texts, 1)
				assert.Contains(t, texts[0], "xxx")
				assert.Less(t, len(texts[0]), maxForeignText+200)
			})
		}
	})
}

// busy is a collector whose first response asks for a pause of one day.
type busy struct{ asked bool }

func (b *busy) send(context.Context, []byte) (*collectorpb.ExportProfilesServiceResponse, error) {
	if b.asked {
		return &collectorpb.ExportProfilesServiceResponse{}, nil
	}
	b.asked = true
	return nil, &failure{error: errors.New("busy"), again: true, after: 24 * time.Hour}
}

func (*busy) Close() error { return nil }

// TestPauseIsLimited checks that a client pauses for at most longestAsked, even if the collector asks for more.
func TestPauseIsLimited(t *testing.T) {
	data := recording(t, 3)
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(&Client{config: config{timeout: time.Hour}, transport: &busy{}, maxRequest: maxRequest})
		began := time.Now()
		q.Add(data)
		require.NoError(t, q.Close(t.Context()))
		assert.EqualValues(t, 6, q.Delivery().Sent)
		assert.Equal(t, longestAsked, time.Since(began))
	})
}

// held is a collector that announces each request in arrived and responds only when answer is closed.
type held struct {
	*server
	arrived, answer chan struct{}
}

func (h *held) Export(ctx context.Context, r *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
	h.arrived <- struct{}{}
	<-h.answer
	return h.server.Export(ctx, r)
}

// TestQueueDropsTheOldest checks that a full queue drops the oldest waiting requests, and not the requests
// being sent.
func TestQueueDropsTheOldest(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", strconv.Itoa(int(testenv.Patience.Milliseconds())))
	h := &held{server: &server{}, arrived: make(chan struct{}, 100), answer: make(chan struct{})}
	c := client(t, "http://"+serve(t, h))
	const (
		room = 2 // waiting requests
		size = 20
	)
	q := newQueue(c, (senders+room)*proto.Size(recording(t, size)))
	var added uint64
	add := func(stacks int) {
		data := recording(t, stacks)
		q.Add(data)
		added += profile.Samples(data)
	}
	for n := range senders {
		add(n + 1)
		<-h.arrived
	}
	const waiting = 40
	for range waiting {
		add(size)
	}
	add(size - 1)
	before := q.Delivery()
	assert.Zero(t, before.Sent)
	assert.Positive(t, before.Dropped)
	assert.Zero(t, before.Dropped%(2*size))
	require.Len(t, before.Reasons, 1)
	assert.ErrorIs(t, before.Reasons[0], errNoRoom)
	q.mu.Lock()
	assert.LessOrEqual(t, q.bytes, q.limit)
	q.mu.Unlock()
	close(h.answer)
	require.NoError(t, q.Close(t.Context()))
	after := q.Delivery()
	assert.Equal(t, added, after.Sent+before.Dropped)
	assert.Zero(t, after.Dropped+after.Waiting)
	got := map[uint64]bool{}
	for _, r := range h.requests {
		got[profile.Samples(&profilespb.ProfilesData{ResourceProfiles: r.GetResourceProfiles(), Dictionary: r.GetDictionary()})] = true
	}
	for n := range senders {
		assert.True(t, got[2*uint64(n+1)], "it was being sent")
	}
	assert.True(t, got[2*(size-1)], "the newest")
}

// TestQueueSurvivesCollectorRestart checks that profiles added while the collector is down are sent when it
// runs again.
func TestQueueSurvivesCollectorRestart(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", strconv.Itoa(int(testenv.Patience.Milliseconds())))
	t.Setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
	path := filepath.Join(testenv.ShortDir(t), "s")
	s := &server{}
	run := func() (stop func()) {
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		g := grpc.NewServer()
		collectorpb.RegisterProfilesServiceServer(g, s)
		done := make(chan error, 1)
		go func() { done <- g.Serve(l) }()
		return func() {
			g.Stop()
			require.NoError(t, <-done)
		}
	}
	q := NewQueue(client(t, "unix://"+path))
	delivered := func(delivery *Delivery, want func() bool) {
		require.Eventually(t, func() bool {
			d := q.Delivery()
			delivery.Sent += d.Sent
			delivery.Dropped += d.Dropped
			delivery.Retried = append(delivery.Retried, d.Retried...)
			return want()
		}, testenv.Patience, time.Millisecond)
	}
	stop := run()
	q.Add(recording(t, 3))
	var all Delivery
	delivered(&all, func() bool { return all.Sent == 6 })
	stop()
	q.Add(recording(t, 4))
	delivered(&all, func() bool { return len(all.Retried) > 0 })
	stop = run()
	delivered(&all, func() bool { return all.Sent == 14 })
	require.NoError(t, q.Close(t.Context()))
	stop()
	assert.Zero(t, all.Dropped)
	assert.Len(t, s.requests, 2)
}
