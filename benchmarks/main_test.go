// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// rolePublisher is the name of a child process that publishes the typical resource until the benchmark
// ends.
const rolePublisher = "publisher"

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		roleService: serveHTTP,
		roleIdle:    beIdle,
		roleDatadog: setDatadogLabels,
		rolePublisher: func(parent *childproc.Parent) {
			pub, err := resourcepublisher.New(oteltest.Resource())
			parent.Must(err)
			parent.Send("published")
			parent.Receive()
			parent.Must(pub.Shutdown(context.Background()))
		},
	})
}

// newPublisher returns a publisher that publishes r until the end of the benchmark or test.
func newPublisher(tb testing.TB, r *resource.Resource) *resourcepublisher.Publisher {
	tb.Helper()
	pub, err := resourcepublisher.New(r)
	if errors.Is(err, errors.ErrUnsupported) {
		noResult(tb, err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, pub.Shutdown(context.Background())) })
	return pub
}

// noResult skips a benchmark and prints the reason, which package testing omits without -v.
func noResult(tb testing.TB, reason any) {
	tb.Helper()
	_, _ = fmt.Printf("%s: no result: %v\n", tb.Name(), reason)
	tb.Skip(reason)
}
