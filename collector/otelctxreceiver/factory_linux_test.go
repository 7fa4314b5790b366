// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package otelctxreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
)

func TestConfig(t *testing.T) {
	for _, tc := range []struct {
		name   string
		given  map[string]any
		change func(*Config)
		err    string
	}{
		{name: "default", change: func(*Config) {}},
		{
			name:   "upstream's and our own options",
			given:  map[string]any{"samples_per_second": 97, "span_links": false, "process_context": false},
			change: func(c *Config) { c.SamplesPerSecond, c.SpanLinks, c.ProcessContext = 97, false, false },
		},
		{name: "invalid frequency", given: map[string]any{"samples_per_second": 0}, err: "invalid sampling frequency"},
		{name: "unknown option", given: map[string]any{"span_link": true}, err: "invalid keys: span_link"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := NewFactory().CreateDefaultConfig()
			err := confmap.NewFromStringMap(tc.given).Unmarshal(cfg)
			if err == nil {
				err = confmap.Validate(cfg)
			}
			if tc.err != "" {
				assert.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			want := NewFactory().CreateDefaultConfig().(*Config)
			tc.change(want)
			assert.Equal(t, want, cfg)
		})
	}
}

// TestShutdownWithoutStart checks that a receiver that was never started can be shut down. A
// Collector does this if another component fails to start.
func TestShutdownWithoutStart(t *testing.T) {
	r, err := NewFactory().(xreceiver.Factory).CreateProfiles(t.Context(), receivertest.NewNopSettings(componentType),
		NewFactory().CreateDefaultConfig(), consumertest.NewNop())
	require.NoError(t, err)
	require.NoError(t, r.Shutdown(t.Context()))
	require.NoError(t, r.Shutdown(t.Context()))
}

func TestForeignConfigIsRefused(t *testing.T) {
	_, err := NewFactory().(xreceiver.Factory).CreateProfiles(t.Context(), receivertest.NewNopSettings(componentType),
		&struct{}{}, consumertest.NewNop())
	assert.EqualError(t, err, "configuration of type *struct {}")
}
