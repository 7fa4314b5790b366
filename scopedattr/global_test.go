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
)

const roleWrapped = "wrapped"

// runWrapped wraps the global providers and sets the results as the global ones. Its parent chooses
// whether the providers are used before that.
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
	global.SetLoggerProvider(NewLoggerProvider(global.GetLoggerProvider()))
	use()
	use()
	parent.Send("%s", strings.Join(reported, "; "))
}

// TestGlobalWrapsItself sets wrappers of the unset global providers as the global ones.
func TestGlobalWrapsItself(t *testing.T) {
	for _, used := range []string{"before", "after"} {
		reported := childproc.Start(t, roleWrapped, nil).Ask("%s", used)
		for _, kind := range []string{"MeterProvider", "LoggerProvider"} {
			assert.Equal(t, 1, strings.Count(reported, "the global "+kind+" is set to a provider that wraps"), "%s: %s", used, reported)
		}
	}
}

// TestGlobalWrapped wraps the global provider without setting the result as the global one.
func TestGlobalWrapped(t *testing.T) {
	wrapped := NewMeterProvider(otel.GetMeterProvider(), "a")
	assert.NotNil(t, wrapped.Meter("test"))
	assert.NotPanics(t, func() { NewLoggerProvider(global.GetLoggerProvider()).Logger("test").Emit(t.Context(), newRecord()) })
}
