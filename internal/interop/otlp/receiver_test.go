// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"errors"
	"math"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
)

// The values of OTEL_EXPORTER_OTLP_PROTOCOL.
const (
	grpcProtobuf = "grpc"
	httpProtobuf = "http/protobuf"
)

// collector is the Collector's OTLP receiver, and the data that it has received.
type collector struct {
	endpoint string // where the receiver listens
	traces   consumertest.TracesSink
	logs     consumertest.LogsSink
	metrics  consumertest.MetricsSink
	profiles consumertest.ProfilesSink
}

// startCollector starts an OTLP receiver for all signals, which runs until the end of the test.
func startCollector(t *testing.T, protocol string) *collector {
	t.Helper()
	for {
		c, err := tryCollector(t, protocol)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue // Another process took the port.
		}
		require.NoError(t, err)
		return c
	}
}

// tryCollector starts the receiver on a port that appears to be free. Another process may take the
// port first.
func tryCollector(t *testing.T, protocol string) (*collector, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())

	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	if protocol == httpProtobuf {
		config.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr.Endpoint = address
	} else {
		config.Protocols.GRPC.GetOrInsertDefault().NetAddr.Endpoint = address
		config.Protocols.HTTP = configoptional.None[otlpreceiver.HTTPConfig]()
	}

	c := &collector{endpoint: "http://" + address}
	settings := receivertest.NewNopSettings(factory.Type())
	// All pipelines share one receiver.
	traces, err := factory.CreateTraces(t.Context(), settings, config, &c.traces)
	require.NoError(t, err)
	logs, err := factory.CreateLogs(t.Context(), settings, config, &c.logs)
	require.NoError(t, err)
	metrics, err := factory.CreateMetrics(t.Context(), settings, config, &c.metrics)
	require.NoError(t, err)
	profiles, err := factory.(xreceiver.Factory).CreateProfiles(t.Context(), settings, config, &c.profiles)
	require.NoError(t, err)
	for _, pipeline := range []component.Component{traces, logs, metrics, profiles} {
		if err := pipeline.Start(t.Context(), componenttest.NewNopHost()); err != nil {
			return nil, err
		}
		t.Cleanup(func() { require.NoError(t, pipeline.Shutdown(context.Background())) })
	}
	return c, nil
}

type span struct {
	traceID [16]byte
	spanID  [8]byte
}

// exported returns the spans received so far.
func (c *collector) exported() map[span]ptrace.Span {
	spans := map[span]ptrace.Span{}
	for _, td := range c.traces.AllTraces() {
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

// linked counts the samples received so far: by linked span, and without a link. first and last are
// the times of the first and the last sample.
func (c *collector) linked() (spans map[span]int, without int, first, last pcommon.Timestamp) {
	spans, first = map[span]int{}, math.MaxUint64
	for _, pd := range c.profiles.AllProfiles() {
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
