// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// telemetry records the receiver's own metrics, which metadata.yaml describes.
type telemetry struct {
	linked, unlinked, contextsRead, contextErrors metric.Int64Counter
}

func newTelemetry(provider metric.MeterProvider) (*telemetry, error) {
	meter := provider.Meter(scopeName, metric.WithInstrumentationVersion(Version))
	var errs error
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter("otelcol_"+name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = errors.Join(errs, err)
		return c
	}
	return &telemetry{
		linked:        counter("otelctx_samples_linked", "{samples}", "Number of samples with a link to a span by the labels of a goroutine."),
		unlinked:      counter("otelctx_samples_unlinked", "{samples}", "Number of samples without labels that name a span."),
		contextsRead:  counter("otelctx_contexts_read", "{contexts}", "Number of process contexts that were read, updates included."),
		contextErrors: counter("otelctx_context_errors", "{errors}", "Number of process contexts that could not be read."),
	}, errs
}

func (t *telemetry) sample(linked bool) {
	c := t.unlinked
	if linked {
		c = t.linked
	}
	c.Add(context.Background(), 1)
}

func (t *telemetry) contextError(kind string) {
	t.contextErrors.Add(context.Background(), 1, metric.WithAttributes(attribute.String("error.type", kind)))
}
