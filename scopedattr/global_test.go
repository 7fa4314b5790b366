// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/log/global"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
)

const roleWrapped = "wrapped"

// runWrapped wraps the global providers and sets the wrappers as the global providers. The parent
// chooses whether the global providers are used before that.
func runWrapped(parent *childproc.Parent) {
	var reported []string
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { reported = append(reported, err.Error()) }))
	use := func() {
		counter, err := otel.Meter("test").Int64Counter("x")
		parent.Must(err)
		counter.Add(with(context.Background(), "a=1"), 1)
		global.Logger("test").Emit(with(context.Background(), "a=1"), newRecord())
	}
	if when, _ := parent.Receive(); when == "before" {
		use()
	}
	otel.SetMeterProvider(NewMeterProvider(otel.GetMeterProvider(), "a"))
	global.SetLoggerProvider(scopedlog.NewLoggerProvider(global.GetLoggerProvider()))
	use()
	use()
	parent.Send("%s", strings.Join(reported, "; "))
}

// TestGlobalWrapsItself checks that setting a wrapper of the global provider as the global provider
// is reported once, and neither deadlocks nor recurses.
func TestGlobalWrapsItself(t *testing.T) {
	for _, used := range []string{"before", "after"} {
		reported := childproc.Start(t, roleWrapped, nil).Ask("%s", used)
		for _, kind := range []string{"MeterProvider", "LoggerProvider"} {
			assert.Equal(t, 1, strings.Count(reported, "the global "+kind+" is set to a provider that wraps"), "%s: %s", used, reported)
		}
	}
}

// TestGlobalWrapped checks that the global provider can be wrapped if the wrapper is not set as the
// global provider.
func TestGlobalWrapped(t *testing.T) {
	wrapped := NewMeterProvider(otel.GetMeterProvider(), "a")
	assert.NotNil(t, wrapped.Meter("test"))
	assert.NotPanics(t, func() {
		scopedlog.NewLoggerProvider(global.GetLoggerProvider()).Logger("test").Emit(t.Context(), newRecord())
	})
}
