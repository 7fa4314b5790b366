// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/wire"
)

// errNoMapping says that there can be no mapping for the attributes of spans.
var errNoMapping = errors.New("spans cannot be advertised")

// publishSeparately has readers find those attributes of extra that say where spans are.
// They are in a mapping of their own as long as the process has no context of ours. It need
// not know whether there is another library's, which may come and go without notice.
// process.mu is held.
//
// The error wraps errNoMapping if there can be no mapping. After any other one nothing has
// changed.
func publishSeparately(extra map[attribute.Key]attribute.Value) error {
	spans := maps.Clone(extra)
	maps.DeleteFunc(spans, func(key attribute.Key, _ attribute.Value) bool {
		return !strings.HasPrefix(string(key), wire.ThreadLocalPrefix)
	})
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
	payload, err := encode(nil, nil, spans)
	if err != nil {
		return err
	}
	if process.separate, err = publishAs(wire.ThreadLocalName, payload); err != nil {
		return fmt.Errorf("%w: %w", errNoMapping, err)
	}
	return nil
}
