// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// drawn returns a curve with the given values for each second of ten minutes.
func drawn(l limits, value func(second int) float64) *curve {
	c := &curve{name: "drawn", limits: l}
	for second := range 600 {
		c.add(time.Duration(second)*time.Second, value(second))
	}
	return c
}

// TestCurves checks that leaks are detected, even with noise, and that harmless curves are not
// reported as leaks.
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
