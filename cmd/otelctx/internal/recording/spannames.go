// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// splitNames returns the span's name and endpoint, empty if missing, and its other attributes. If a key
// occurs twice, the last value wins.
func splitNames(attributes []reader.ThreadAttribute) (name, endpoint string, others []reader.ThreadAttribute) {
	for _, a := range attributes {
		switch a.Key {
		case wire.NameKey:
			name = a.Value
		case wire.EndpointKey:
			endpoint = a.Value
		default:
			others = append(others, a)
		}
	}
	return name, endpoint, others
}
