// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
)

// RequestCount is the number of requests to an endpoint.
type RequestCount struct {
	// RequestsEnded is the number of requests that ended, as the service counts them. It is left out if it is not known.
	RequestsEnded *uint64 `json:"requests_ended,omitempty"`
	// RequestsIncomplete reports whether there may have been more, because a process ended or does not count them.
	RequestsIncomplete bool `json:"requests_incomplete,omitempty"`
}

func requestCount(r *tally.Requests) RequestCount {
	if r == nil {
		return RequestCount{}
	}
	return RequestCount{&r.Ended, r.AtLeast}
}

// number is a number of requests or spans.
type number struct {
	count uint64
	// seen reports whether only those with samples are counted, and atLeast whether there may be more for another reason.
	seen, atLeast bool
}

// requestsOf returns the number of requests. served is nil if the service does not count them. seen is the number of
// requests that have samples. It counts if it is larger, which happens if most requests had not ended.
func requestsOf(served *tally.Requests, seen int) number {
	if served == nil || served.Ended < uint64(seen) {
		return number{count: uint64(seen), seen: true}
	}
	return number{count: served.Ended, atLeast: served.AtLeast}
}

// String returns the number, marked if it is a lower bound.
func (n number) String() string {
	if n.seen || n.atLeast {
		return "≥ " + display.Digits(n.count)
	}
	return display.Digits(n.count)
}

// isUpper reports whether the average of one is an upper bound. If those without samples are not counted, that is so unless
// each has many samples on average.
func (n number) isUpper(samples uint64) bool {
	const many = 5 // If spans have this many samples on average, hardly any span has none.
	return n.atLeast || n.seen && samples < many*n.count
}

// each returns the average time of one, or "-" if there are none.
func (n number) each(total time.Duration, samples uint64) string {
	return n.mark(samples, func() string {
		each := float64(total) / float64(n.count) / float64(time.Millisecond)
		if each < 1 {
			return fmt.Sprintf("%.2fms", each)
		}
		return fmt.Sprintf("%.1fms", each)
	})
}

// eachBytes returns the average bytes of one, or "-" if there are none.
func (n number) eachBytes(total float64, samples uint64) string {
	return n.mark(samples, func() string { return display.Bytes(total / float64(n.count)) })
}

// mark returns the text of an average, marked if it is an upper bound.
func (n number) mark(samples uint64, text func() string) string {
	switch {
	case n.count == 0:
		return "-"
	case n.isUpper(samples):
		return "≤ " + text()
	default:
		return text()
	}
}
