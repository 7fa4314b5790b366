// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"errors"
	"fmt"
	"maps"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/wire"
)

// errNoMapping says that there can be no mapping for the attributes of spans.
var errNoMapping = errors.New("spans cannot be advertised")

func init() { advertise.Change = advertiseSpans }

// advertiseSpans implements [advertise.Change].
func advertiseSpans(set []attribute.KeyValue, remove []attribute.Key) error {
	defer lock()()
	spans := make(attributes, len(process.spans)+len(set))
	maps.Copy(spans, process.spans)
	for _, kv := range set {
		pb, problem := keyValue(kv)
		if pb == nil {
			return fmt.Errorf("attribute %w", problem)
		}
		if problem != nil {
			note(fmt.Errorf("attribute %w", problem))
		}
		spans[kv.Key] = pb
	}
	for _, key := range remove {
		delete(spans, key)
	}
	if len(process.spans) == 0 && len(spans) > 0 && foreignSpans() {
		return errForeignSpans
	}
	return changeAttributes(process.extra, spans)
}

// publishSeparately has readers find the attributes that say where spans are. They are in a
// mapping of their own as long as the process has no context of ours. It need
// not know whether there is another library's, which may come and go without notice.
// process.mu is held.
//
// The error wraps errNoMapping if there can be no mapping. After any other one nothing has
// changed.
func publishSeparately(spans attributes) error {
	p := process.separate
	switch {
	case p != nil && (process.active != nil || len(spans) == 0):
		process.separate = nil
		return p.withdraw()
	case p != nil:
		return p.publish(nil, spans)
	case process.active != nil || len(spans) == 0:
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
