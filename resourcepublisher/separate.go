// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"errors"
	"fmt"
	"maps"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/wire"
)

// errNoMapping means that the mapping for span attributes cannot be created.
var errNoMapping = errors.New("spans cannot be advertised")

// advertiseSpans implements [advertise.Change].
func advertiseSpans(set []attribute.KeyValue, remove []attribute.Key) error {
	spans := make(attributes, len(process.spanAttributes)+len(set))
	maps.Copy(spans, process.spanAttributes)
	for _, kv := range set {
		pb, problem := keyValue(kv)
		if pb == nil {
			return fmt.Errorf("attribute %w", problem)
		}
		if problem != nil {
			providers.Report(fmt.Errorf("attribute %w", problem))
		}
		spans[kv.Key] = pb
	}
	for _, key := range remove {
		delete(spans, key)
	}
	if len(process.spanAttributes) == 0 && len(spans) > 0 && foreignSpans() {
		return errForeignSpans
	}
	return changeAttributes(process.userAttributes, spans)
}

// publishSeparately publishes the attributes that advertise spans in a separate mapping while this
// package publishes no process context, and withdraws that mapping otherwise. It ignores the
// contexts of other libraries, which may appear and disappear at any time. The lock is held.
//
// The error wraps errNoMapping if the mapping cannot be created. After an error from the
// withdrawal, readers no longer find the attributes there. After any other error nothing has
// changed.
func publishSeparately(spans attributes) error {
	p := process.separate
	switch {
	case p != nil && (process.context != nil || len(spans) == 0):
		process.separate = nil
		return p.withdraw()
	case p != nil:
		return p.publish(nil, nil, spans)
	case process.context != nil || len(spans) == 0:
		return nil
	}
	e, err := encode(nil, nil, spans)
	if err != nil {
		return err
	}
	if process.separate, err = publishAs(wire.ThreadLocalName, e.payload); err != nil {
		return fmt.Errorf("%w: %w", errNoMapping, err)
	}
	return nil
}
