// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"testing"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){"publish a span": publishSpan})
}
