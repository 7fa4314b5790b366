// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

var other = flag.String("other", "", "path of another otelctx, whose record --wall is measured in turns with the current one")

// waitingRole is a service whose requests are in spans, and wait. It receives how many requests it serves at a time, and
// the average time that each takes. It answers with "waiting".
const waitingRole = "waiting"

func serveWaiting(parent *childproc.Parent) {
	line, _ := parent.Receive()
	var requests int
	var average string
	_, err := fmt.Sscan(line, &requests, &average)
	parent.Must(err)
	length, err := time.ParseDuration(average)
	parent.Must(err)
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "waiting"))), spanctx.WithPublishing())
	tracer := tp.Tracer("")
	names := [...]string{"GET /price", "GET /stock", "POST /order", "GET /picture"}
	wait := func() {
		time.Sleep(time.Duration(float64(length) * (0.5 + rand.Float64())))
	}
	for i := range requests {
		go func() {
			for {
				_, span := tracer.Start(context.Background(), names[i%len(names)])
				nested(i%8, wait)
				span.End()
			}
		}()
	}
	parent.Send("waiting")
	parent.Receive()
}

// nested calls do at the given depth, so that stacks differ.
//
//go:noinline
func nested(depth int, do func()) {
	if depth > 0 {
		nested(depth-1, do)
		return
	}
	do()
}

// TestWall measures the CPU time of record --wall, and of the one of -other, while a service has 1,000 live spans. On a
// busy machine the recorder skips snapshots, so the result is the CPU time of each snapshot times the 20 snapshots that
// it takes in a second otherwise.
func TestWall(t *testing.T) {
	need(t)
	exe := build(t)
	for _, length := range []string{"1s", "1h"} {
		t.Run("request="+length, func(t *testing.T) {
			service := childproc.Start(t, waitingRole, nil)
			require.Equal(t, "waiting", service.Ask("1000 %s", length))
			share := func(exe string) float64 {
				r := otelctx(t, exe, strconv.Itoa(service.PID()), "--wall")
				time.Sleep(beginning)
				before, began := r.used(), time.Now()
				time.Sleep(*window)
				share := 100 * (r.used() - before).Seconds() / time.Since(began).Seconds()
				r.end()
				var document struct {
					Snapshots    float64
					DurationNano time.Duration `json:"duration_nano"`
				}
				require.NoError(t, json.Unmarshal(r.stdout.Bytes(), &document))
				const frequency = 20
				return share * frequency / (document.Snapshots / document.DurationNano.Seconds())
			}
			var shares, others, ratios []float64
			for range *rounds {
				if *other != "" {
					others = append(others, share(*other))
				}
				shares = append(shares, share(exe))
				if *other != "" {
					ratios = append(ratios, shares[len(shares)-1]/others[len(others)-1])
				}
			}
			t.Logf("%% of a core: %.2f, median %.2f", shares, median(shares))
			if *other != "" {
				t.Logf("%% of a core with -other: %.2f, median %.2f; ratio %.2f, median %.2f", others, median(others), ratios, median(ratios))
			}
		})
	}
}
