// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.yaml.in/yaml/v3"
)

// TestMetadata checks that the component has the name and the metrics that metadata.yaml
// describes.
func TestMetadata(t *testing.T) {
	text, err := os.ReadFile("metadata.yaml")
	require.NoError(t, err)
	var metadata struct {
		Type      string
		ScopeName string `yaml:"scope_name"`
		Telemetry struct {
			Metrics map[string]struct {
				Description, Unit string
				Attributes        []string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &metadata))
	f := NewFactory()
	assert.Equal(t, metadata.Type, f.Type().String())
	assert.Equal(t, scopeName, metadata.ScopeName)

	set := componenttest.NewTelemetry()
	tel, err := newTelemetry(set.NewTelemetrySettings().MeterProvider)
	require.NoError(t, err)
	tel.sample(true)
	tel.sample(false)
	tel.contextsRead.Add(context.Background(), 1)
	tel.contextError("invalid")
	var all metricdata.ResourceMetrics
	require.NoError(t, set.Reader.Collect(t.Context(), &all))
	require.Len(t, all.ScopeMetrics, 1)
	assert.Equal(t, scopeName, all.ScopeMetrics[0].Scope.Name)
	assert.Equal(t, Version, all.ScopeMetrics[0].Scope.Version)
	assert.Len(t, all.ScopeMetrics[0].Metrics, len(metadata.Telemetry.Metrics))
	for _, m := range all.ScopeMetrics[0].Metrics {
		about, known := metadata.Telemetry.Metrics[m.Name[len("otelcol_"):]]
		require.True(t, known, m.Name)
		assert.Equal(t, about.Description, m.Description)
		assert.Equal(t, about.Unit, m.Unit)
		p := m.Data.(metricdata.Sum[int64]).DataPoints[0]
		assert.Equal(t, len(about.Attributes), p.Attributes.Len(), m.Name)
		for _, key := range about.Attributes {
			assert.True(t, p.Attributes.HasValue(attribute.Key(key)), key)
		}
	}
}

func TestConfigIsWellFormed(t *testing.T) {
	assert.NoError(t, componenttest.CheckConfigStruct(NewFactory().CreateDefaultConfig()))
	assert.Equal(t, component.StabilityLevelDevelopment, NewFactory().(interface {
		ProfilesStability() component.StabilityLevel
	}).ProfilesStability())
}
