// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package waiting_test

import (
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func TestMain(m *testing.M) { childproc.Main(m, nil) }

// lockFact is a line of internal/testing/lockservice.
type lockFact struct {
	Name    string
	Holder  uint64
	Waiters []uint64
	Unknown bool
	Blocked bool
}

// TestHolders compares the goroutines that are said to hold locks with those that hold them.
func TestHolders(t *testing.T) {
	childproc.NeedReading(t)
	unoptimized := programs.Variant{Name: "unoptimized", Flags: []string{"-gcflags=all=-N -l"}}
	unoptimizedMain := programs.Variant{Name: "unoptimized-main", Flags: []string{"-gcflags=-N -l"}}
	race := programs.Variant{Name: "race", Cgo: true, Flags: []string{"-race"}}
	for _, test := range []struct {
		programs.Variant

		// fewer says that the holder may be unknown in other cases, too.
		fewer, all bool
	}{
		{Variant: programs.Static},
		{Variant: programs.Stripped},
		{Variant: unoptimizedMain, fewer: true},
		{Variant: unoptimized, fewer: true, all: true},
		{Variant: race, fewer: true, all: true},
		{Variant: programs.PIE, all: true},
		{Variant: programs.Cgo, all: true},
		{Variant: programs.CgoPIE, all: true},
		{Variant: programs.Static.With("go1.25.0")},
		{Variant: programs.Stripped.With("go1.25.0")},
		{Variant: programs.PIE.With("go1.25.0")},
		{Variant: programs.Static.With(programs.NextGo)},
		{Variant: programs.Stripped.With(programs.NextGo)},
		{Variant: programs.CgoPIE.With(programs.NextGo)},
	} {
		t.Run(test.Name, func(t *testing.T) {
			if test.all {
				testenv.NeedAll(t)
			}
			c := childproc.Run(t, exec.Command(programs.Build(t, test.Variant, "../../../..", "./internal/testing/lockservice")))
			var facts []lockFact
			for line := c.Receive(); line != "ready"; line = c.Receive() {
				var f lockFact
				require.NoError(t, json.Unmarshal([]byte(line), &f))
				facts = append(facts, f)
			}
			require.GreaterOrEqual(t, len(facts), 60)
			holders := holdersOf(t, c.PID(), facts)
			right, none := 0, 0
			for _, f := range facts {
				for _, w := range f.Waiters {
					chain := holders[w]
					switch {
					case len(chain) == 0 && (f.Unknown || f.Holder == 0 || test.fewer):
					case assert.NotEmpty(t, chain, f.Name):
						assert.Equal(t, f.Holder, chain[0].ID, f.Name)
					}
				}
				if len(holders[f.Waiters[0]]) > 0 {
					right++
				} else {
					none++
					t.Log("none:", f.Name)
				}
			}
			t.Logf("%d right, %d none", right, none)
			assert.GreaterOrEqual(t, right, 40)
		})
	}
}

// holdersOf returns the chains of holders by waiting goroutine, once the goroutines of facts wait for locks.
func holdersOf(t *testing.T, pid int, facts []lockFact) map[uint64][]waiting.Holder {
	t.Helper()
	p, err := waiting.Open(pid)
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	var found map[uint64][]waiting.Holder
	require.Eventually(t, func() bool {
		every, err := p.Every(t.Context())
		require.NoError(t, err)
		goroutines := map[uint64]*waiting.Goroutine{}
		for {
			batch, err := every.Next(t.Context())
			require.NoError(t, err)
			if len(batch) == 0 {
				break
			}
			for i := range batch {
				goroutines[batch[i].ID] = &batch[i].Goroutine
			}
		}
		require.NoError(t, every.FindObjects(t.Context()))
		require.Empty(t, every.Missing)
		found = map[uint64][]waiting.Holder{}
		for _, f := range facts {
			if h := goroutines[f.Holder]; f.Blocked && (h == nil || h.Wait.Lock == 0) {
				return false
			}
			for _, w := range f.Waiters {
				g := goroutines[w]
				if g == nil || g.Wait.Lock == 0 {
					return false
				}
				found[w], _ = every.HeldUpBy(g)
			}
		}
		return true
	}, testenv.Patience, 1)
	return found
}
