// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
)

// TestMain lets the test binary also run as scoreboard serve, which the scoreboard starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestScore checks that otelctx record gives no sample a wrong span, whichever carrier is published,
// and that it misses no span if the carrier can provide all of them. It uses a selection of patterns,
// which includes those in which the carriers differ.
func TestScore(t *testing.T) {
	const (
		always    = "httpServerChild,goFunction,rootEndedElsewhere,childEndedElsewhere,siblings,attachChild"
		inherited = "startedInside,outlives,outlivesOwnSpan" // new goroutines inherit only the goroutine record
		rings     = "smallRing,tinyRing"
	)
	otelctx := programs.Build(t, programs.Static, "../../cmd/otelctx", ".")
	for _, tt := range []struct {
		publish, observer, patterns string
		// exact is true if no sample in a span may lack it.
		exact bool
	}{
		{"default", "record", always + "," + inherited + "," + rings, true},
		{"default", "labels", inherited, true},
		{"record", "record", always + "," + inherited, true},
		{"goroutine_table", "record", always, true},
		{"goroutine_table", "record", inherited, false},
		{"thread_slots", "record", always + "," + inherited + "," + rings, false},
	} {
		t.Run(tt.publish+" "+tt.observer, func(t *testing.T) {
			b := board{
				otelctx: otelctx, publish: tt.publish, observers: tt.observer, cpu: 500 * time.Millisecond, parallel: 8,
				patterns: tt.patterns,
			}
			var out strings.Builder
			err := b.score(&out)
			if errors.Is(err, errNotPermitted) {
				t.Skip(err)
			}
			require.NoError(t, err)
			t.Log(out.String())
			shown := 0
			for name, row := range b.rows {
				got := row.Tallies[tt.observer]
				shown += got.Shown
				assert.GreaterOrEqual(t, got.samples(), wanted, name)
				assert.Zero(t, got.Wrong, name)
				if tt.exact {
					assert.Zero(t, got.None, name)
				}
			}
			assert.Positive(t, shown)
		})
	}
}
