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

// runWrapped has the global providers be wrappers of what was global before, as its parent
// says: before or after they were used.
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

// TestGlobalWrapsItself makes wrappers of the unset global providers the global ones.
func TestGlobalWrapsItself(t *testing.T) {
	for _, used := range []string{"before", "after"} {
		said := childproc.Start(t, roleWrapped, nil).Ask("%s", used)
		for _, kind := range []string{"MeterProvider", "LoggerProvider"} {
			assert.Equal(t, 1, strings.Count(said, "the global "+kind+" is set to a provider that wraps"), "%s: %s", used, said)
		}
	}
}

// TestGlobalWrapped wraps the global provider for some library, and the program sets its own
// later.
func TestGlobalWrapped(t *testing.T) {
	wrapped := NewMeterProvider(otel.GetMeterProvider(), "a")
	assert.NotNil(t, wrapped.Meter("test"))
	assert.NotPanics(t, func() { NewLoggerProvider(global.GetLoggerProvider()).Logger("test").Emit(t.Context(), newRecord()) })
}
