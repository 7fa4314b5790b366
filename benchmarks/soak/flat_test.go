// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// drawn returns a curve of a point a second for ten minutes.
func drawn(l limits, value func(second int) float64) *curve {
	c := &curve{name: "drawn", limits: l}
	for second := range 600 {
		c.add(time.Duration(second)*time.Second, value(second))
	}
	return c
}

func TestFlatCurves(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	few := limits{growth: 3, spread: 8}
	for name, value := range map[string]func(int) float64{
		"constant":       func(int) float64 { return 20 },
		"noise":          func(int) float64 { return 20 + random.Float64()*6 },
		"a saw":          func(s int) float64 { return 20 + float64(s%9) },
		"warming up":     func(s int) float64 { return 20 + float64(min(s, 250)) },
		"falling":        func(s int) float64 { return 60 - float64(s)/60 },
		"one more":       func(s int) float64 { return 20 + float64(s/500) },
		"an early burst": func(s int) float64 { return max(20, float64(250-s)) },
	} {
		assert.Empty(t, drawn(few, value).problems(), name)
	}
}

// What leaks is not flat, even in noise.
func TestLeakingCurves(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	few := limits{growth: 3, spread: 8}
	for name, tt := range map[string]struct {
		value    func(int) float64
		problems int
	}{
		"one in a second":            {func(s int) float64 { return 20 + float64(s) }, 2},
		"one in a minute":            {func(s int) float64 { return 20 + float64(s)/60 }, 1},
		"one in a minute, in noise":  {func(s int) float64 { return 20 + float64(s)/60 + random.Float64()*6 }, 1},
		"after it was warm":          {func(s int) float64 { return 20 + float64(max(s-400, 0))/20 }, 1},
		"a burst that is taken back": {func(s int) float64 { return 20 + 9*float64(s/450*(1-s/451)) }, 1},
		"not a number":               {func(int) float64 { return math.NaN() }, 2},
	} {
		assert.Len(t, drawn(few, tt.value).problems(), tt.problems, name)
	}
}

func TestTooFewPointsAreNotFlat(t *testing.T) {
	c := &curve{name: "short", limits: limits{growth: 3, spread: 8}}
	require.Equal(t, []string{"short: 0 points are too few"}, c.problems())
	for range 2*leastPoints - 1 {
		c.add(time.Duration(len(c.at))*time.Second, 1)
	}
	require.Empty(t, c.problems())
	c.at, c.value = c.at[2:], c.value[2:]
	require.Equal(t, []string{"short: 9 points are too few"}, c.problems())
}

func TestSettled(t *testing.T) {
	s := drawn(limits{}, func(s int) float64 { return 100 + 2*float64(s) }).settled()
	assert.Equal(t, 300, s.points)
	assert.InDelta(t, 2*299, s.growth, 1e-6)
	assert.InDelta(t, 2*299, s.rise, 1e-6)
	assert.InDelta(t, 100+2*599, s.max, 1e-6)
	assert.InDelta(t, 100+2*449, s.median, 2)
	assert.InDelta(t, 100+2*60, drawn(limits{}, func(s int) float64 { return 100 + 2*float64(s) }).near(60.4), 1e-6)
}
