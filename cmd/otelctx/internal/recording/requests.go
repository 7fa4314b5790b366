// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"sync"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/requests"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

// countRequests counts the requests to a program since the last call. The program may block it.
func (s *scanner) countRequests(t *target) {
	t.requests.Read(&s.requests, t.reader, func() (*reader.ThreadLayout, string) {
		p := t.published.Load()
		return p.layout, p.service
	})
}

// endRequestPeriod starts to count the requests to all programs, and then sends those since the previous call on ended,
// which must have room. It does not wait. Calls must not overlap. If the previous period is still being counted, this one is
// counted after it, so that each gets its own requests.
func (s *search) endRequestPeriod(ended chan<- *requests.Period) {
	var counting []*target
	for _, t := range s.targets.running() {
		if !t.counts() {
			continue
		}
		if t = s.targets.acquire(t.image); t != nil {
			counting = append(counting, t)
		}
	}
	previous, counted := s.counted, make(chan struct{})
	s.counted = counted
	s.working.Go(func() {
		defer close(counted)
		if previous != nil {
			<-previous
		}
		var reading sync.WaitGroup
		for _, t := range counting {
			reading.Go(func() {
				defer t.release()
				_, err := timelimit.Call(context.Background(), t.image.PID, processLimit, func() (struct{}, error) {
					s.countRequests(t)
					return struct{}{}, nil
				})
				if err != nil {
					s.requests.Miss(t.published.Load().service)
				}
			})
		}
		reading.Wait()
		ended <- s.requests.EndPeriod()
	})
}

// counts reports whether the program publishes names, with which it counts its requests.
func (t *target) counts() bool {
	layout := t.published.Load().layout
	return layout != nil && layout.Names != nil
}
