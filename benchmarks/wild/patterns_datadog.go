// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"

	"github.com/DataDog/dd-trace-go/v2/ddtrace/tracer"
)

// datadogPatterns lists patterns in which dd-trace-go runs beside otelctx. Each needs its own process,
// because dd-trace-go publishes a process context, too.
var datadogPatterns = []pattern{
	{run: otherDatadog, about: "dd-trace-go: a Datadog span inside a span", alone: true},
	{run: otherDatadogAfter, about: "the same: after the Datadog span, in the span", alone: true},
	{run: otherDatadogOutside, about: "the same: a span inside a Datadog span, and after it", alone: true},
}

// startDatadog starts dd-trace-go's tracer, without an agent.
var startDatadog = sync.OnceFunc(func() {
	must(tracer.Start(tracer.WithService("wild"), tracer.WithLogStartup(false), tracer.WithLogger(silence{}),
		tracer.WithProfilerCodeHotspots(true), tracer.WithProfilerEndpoints(true), tracer.WithAgentTimeout(1)))
})

// silence is a dd-trace-go logger that discards everything, because the agent is missing.
type silence struct{}

func (silence) Log(string) {}

func otherDatadog(r *run) {
	startDatadog()
	outer, span := r.root("root")
	other, ctx := tracer.StartSpanFromContext(outer, "datadog")
	r.stayIn(ctx)
	other.Finish()
	span.End()
}

func otherDatadogAfter(r *run) {
	startDatadog()
	outer, span := r.root("root")
	other, _ := tracer.StartSpanFromContext(outer, "datadog")
	other.Finish()
	r.stayIn(outer)
	span.End()
	r.out()
}

func otherDatadogOutside(r *run) {
	startDatadog()
	other, outside := tracer.StartSpanFromContext(context.Background(), "datadog")
	ctx, span := r.start(outside, "root")
	r.stayIn(ctx)
	span.End()
	r.out()
	other.Finish()
}
