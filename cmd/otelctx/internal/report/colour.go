// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import "github.com/otelctx/otelctx/cmd/otelctx/internal/display"

// heat returns the style of a number that is part of a total of whole.
func heat(part, whole uint64) display.Style {
	const hot, warm = 10, 50 // A number is hot from 1/hot of the whole, and warm from 1/warm.
	switch {
	case part*hot >= whole:
		return display.Red
	case part*warm >= whole:
		return display.Yellow
	default:
		return ""
	}
}
