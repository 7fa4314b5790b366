// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
)

// The values of OTEL_EXPORTER_OTLP_PROTOCOL.
const (
	grpcProtobuf = "grpc"
	httpProtobuf = "http/protobuf"
)

// collector is the Collector's OTLP receiver, and the profiles that it has received.
type collector struct {
	endpoint string // where the receiver listens
	profiles consumertest.ProfilesSink
}

// startCollector starts an OTLP receiver for profiles, which runs until the end of the test.
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
	profiles, err := factory.(xreceiver.Factory).CreateProfiles(t.Context(), receivertest.NewNopSettings(factory.Type()), config, &c.profiles)
	require.NoError(t, err)
	if err := profiles.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		return nil, err
	}
	t.Cleanup(func() { require.NoError(t, profiles.Shutdown(context.Background())) })
	return c, nil
}
