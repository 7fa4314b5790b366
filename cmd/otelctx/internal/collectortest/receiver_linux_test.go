// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package collectortest

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
)

// The environment's choice of OTLP/HTTP. The default is OTLP/gRPC.
const (
	protocolVariable = "OTEL_EXPORTER_OTLP_PROTOCOL"
	httpProtobuf     = "http/protobuf"
)

// collector is what stands behind the collector's OTLP receiver, and keeps what it gets.
type collector struct {
	// endpoint is where the receiver listens, by the protocol of protocolVariable.
	endpoint string

	mu       sync.Mutex
	profiles []pprofile.Profiles
	traces   []ptrace.Traces
}

// startCollector starts the collector's OTLP receiver with pipelines of traces and
// profiles, until the end of the test.
func startCollector(t *testing.T) *collector {
	t.Helper()
	for {
		c, err := tryCollector(t)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue // Somebody else has been quicker.
		}
		require.NoError(t, err)
		return c
	}
}

// tryCollector has the receiver listen on a port that was free a moment ago.
func tryCollector(t *testing.T) (*collector, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())

	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	if os.Getenv(protocolVariable) == httpProtobuf {
		config.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr.Endpoint = address
	} else {
		config.Protocols.GRPC.GetOrInsertDefault().NetAddr.Endpoint = address
		config.Protocols.HTTP = configoptional.None[otlpreceiver.HTTPConfig]()
	}

	c := &collector{endpoint: "http://" + address}
	traces, err := consumer.NewTraces(keep(c, &c.traces, ptrace.NewTraces))
	require.NoError(t, err)
	profiles, err := xconsumer.NewProfiles(keep(c, &c.profiles, pprofile.NewProfiles))
	require.NoError(t, err)
	settings := receivertest.NewNopSettings(factory.Type())
	// Both pipelines share one receiver.
	ofTraces, err := factory.CreateTraces(t.Context(), settings, config, traces)
	require.NoError(t, err)
	ofProfiles, err := factory.(xreceiver.Factory).CreateProfiles(t.Context(), settings, config, profiles)
	require.NoError(t, err)
	host := componenttest.NewNopHost()
	if err := ofTraces.Start(t.Context(), host); err != nil {
		return nil, err
	}
	require.NoError(t, ofProfiles.Start(t.Context(), host))
	t.Cleanup(func() {
		require.NoError(t, ofTraces.Shutdown(context.Background()))
		require.NoError(t, ofProfiles.Shutdown(context.Background()))
	})
	return c, nil
}

// keep returns a consumer that appends copies of what it gets to kept.
func keep[T interface{ CopyTo(to T) }](c *collector, kept *[]T, empty func() T) func(context.Context, T) error {
	return func(_ context.Context, data T) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		own := empty()
		data.CopyTo(own)
		*kept = append(*kept, own)
		return nil
	}
}

// span is a span by its ids.
type span struct {
	traceID [16]byte
	spanID  [8]byte
}

// exported returns the spans that have come.
func (c *collector) exported() map[span]ptrace.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	spans := map[span]ptrace.Span{}
	for _, td := range c.traces {
		for _, r := range td.ResourceSpans().All() {
			for _, scope := range r.ScopeSpans().All() {
				for _, s := range scope.Spans().All() {
					spans[span{s.TraceID(), s.SpanID()}] = s
				}
			}
		}
	}
	return spans
}

// linked returns the spans that samples have come for, with how many, and how many
// samples have come for none. first and last are when the first and the last sample of
// all were taken.
func (c *collector) linked() (spans map[span]int, without int, first, last pcommon.Timestamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	spans, first = map[span]int{}, math.MaxUint64
	for _, pd := range c.profiles {
		for _, r := range pd.ResourceProfiles().All() {
			for _, scope := range r.ScopeProfiles().All() {
				for _, p := range scope.Profiles().All() {
					for _, s := range p.Samples().All() {
						n := s.TimestampsUnixNano().Len()
						for _, at := range s.TimestampsUnixNano().All() {
							first, last = min(first, pcommon.Timestamp(at)), max(last, pcommon.Timestamp(at))
						}
						if s.LinkIndex() == 0 {
							without += n
							continue
						}
						l := pd.Dictionary().LinkTable().At(int(s.LinkIndex()))
						spans[span{l.TraceID(), l.SpanID()}] += n
					}
				}
			}
		}
	}
	return spans, without, first, last
}
