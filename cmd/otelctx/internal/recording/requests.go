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

// endRequestPeriod counts the requests to all programs, and sends those since the last call to ended, which has room. It
// does not wait.
func (s *search) endRequestPeriod(ended chan<- *requests.Period) {
	var reading sync.WaitGroup
	for _, t := range s.targets.running() {
		if !t.counts() {
			continue
		}
		if t = s.targets.acquire(t.image); t == nil {
			continue
		}
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
	s.working.Go(func() {
		reading.Wait()
		ended <- s.requests.EndPeriod()
	})
}

// counts reports whether the program publishes names, with which it counts its requests.
func (t *target) counts() bool {
	layout := t.published.Load().layout
	return layout != nil && layout.Names != nil
}
