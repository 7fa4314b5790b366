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

// What leaks is not flat, even in noise.
func TestCurves(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(most float64) float64 { return random.Float64() * most }
	for name, tt := range map[string]struct {
		problems int
		value    func(second int) float64
	}{
		"constant":       {0, func(int) float64 { return 20 }},
		"noise":          {0, func(int) float64 { return 20 + noise(6) }},
		"a saw":          {0, func(s int) float64 { return 20 + float64(s%9) }},
		"warming up":     {0, func(s int) float64 { return 20 + float64(min(s, 250)) }},
		"falling":        {0, func(s int) float64 { return 60 - float64(s)/60 }},
		"one more":       {0, func(s int) float64 { return 20 + float64(s/500) }},
		"an early burst": {0, func(s int) float64 { return max(20, float64(250-s)) }},

		"leaks one a second":             {2, func(s int) float64 { return 20 + float64(s) }},
		"leaks one a minute":             {1, func(s int) float64 { return 20 + float64(s)/60 }},
		"leaks one a minute, with noise": {1, func(s int) float64 { return 20 + float64(s)/60 + noise(6) }},
		"leaks after it was warm":        {1, func(s int) float64 { return 20 + float64(max(s-400, 0))/20 }},
		"a burst that is taken back":     {1, func(s int) float64 { return 20 + 9*float64(s/450*(1-s/451)) }},
		"not a number":                   {2, func(int) float64 { return math.NaN() }},
	} {
		assert.Len(t, drawn(limits{growth: 3, spread: 8}, tt.value).problems(), tt.problems, name)
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
}
