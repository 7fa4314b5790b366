// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// curve is a series of measurements of an amount, such as memory, over time.
type curve struct {
	name   string
	unit   unit
	limits limits
	// at holds the times of the measurements in seconds since the start, in ascending order. value
	// holds the amounts at these times.
	at, value []float64
}

// unit selects how the values of a curve are printed.
type unit int

const (
	things unit = iota
	memory
)

const mebibyte = 1 << 20

func (u unit) text(v float64) string {
	if u == memory {
		return fmt.Sprintf("%.2f MiB", v/mebibyte)
	}
	return fmt.Sprintf("%.1f", math.Round(10*v)/10+0) // never -0
}

// limits bounds how much a curve may change in its second half and still count as flat.
type limits struct {
	// growth is the maximum rise of a straight line fitted by least squares. There is no limit for
	// a fall.
	growth float64
	// spread is the maximum distance of the highest point above the median.
	spread float64
}

func (c *curve) add(at time.Duration, value float64) {
	c.at = append(c.at, at.Seconds())
	c.value = append(c.value, value)
}

// leastPoints is the minimum number of points needed to tell whether a curve is flat.
const leastPoints = 10

// settled summarizes the second half of a curve. In the first half the process warms up.
type settled struct {
	points              int
	median, max, growth float64
	// rise is the difference between the last and the first point.
	rise float64
}

func (c *curve) settled() settled {
	if len(c.at) == 0 {
		return settled{}
	}
	first, last := c.at[0], c.at[len(c.at)-1]
	from, _ := slices.BinarySearch(c.at, first+(last-first)/2)
	at, value := c.at[from:], c.value[from:]
	sorted := slices.Sorted(slices.Values(value))
	return settled{
		points: len(at),
		median: sorted[(len(sorted)-1)/2],
		max:    sorted[len(sorted)-1],
		growth: slope(at, value) * (at[len(at)-1] - at[0]),
		rise:   value[len(value)-1] - value[0],
	}
}

// slope returns the slope of the straight line fitted by least squares.
func slope(x, y []float64) float64 {
	meanX, meanY, products, squares := mean(x), mean(y), 0.0, 0.0
	for i := range x {
		products += (x[i] - meanX) * (y[i] - meanY)
		squares += (x[i] - meanX) * (x[i] - meanX)
	}
	return products / squares
}

func mean(values []float64) (mean float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	return mean
}

// spread returns how far the highest point is above the median.
func (s settled) spread() float64 { return s.max - s.median }

// problems returns the reasons why a curve is not flat, or that it has too few points. It is empty
// if the curve is flat.
func (c *curve) problems() []string {
	s := c.settled()
	if s.points < leastPoints {
		return []string{fmt.Sprintf("%s: %d points are too few", c.name, s.points)}
	}
	var all []string
	// This form also catches NaN.
	if !(s.growth <= c.limits.growth) {
		all = append(all, fmt.Sprintf("%s: grows by %s, more than %s", c.name, c.unit.text(s.growth), c.unit.text(c.limits.growth)))
	}
	if !(s.spread() <= c.limits.spread) {
		all = append(all, fmt.Sprintf("%s: up to %s above the median of %s, more than %s", c.name, c.unit.text(s.spread()),
			c.unit.text(s.median), c.unit.text(c.limits.spread)))
	}
	return all
}
