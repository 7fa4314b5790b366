// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package requests counts the requests to each endpoint during a recording, from the numbers that services publish.
package requests

import (
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/reader"
)

// Counter adds up the requests to all processes in a period. It is safe for concurrent use. The zero value is ready
// for use.
type Counter struct {
	mu     sync.Mutex
	period Period
}

// Period holds the number of requests in a period.
type Period struct {
	ended map[endpoint]uint64
	// services has the services that have processes which count their requests: true if the counters were read in this
	// period, and false if in the previous one. incomplete has those of which some requests may not have been counted.
	services, incomplete map[string]bool
}

type endpoint struct{ service, name string }

// maxEndpoints bounds the endpoints that are counted in a period.
const maxEndpoints = 1 << 14

func (p *Period) note(service string, incomplete bool) {
	if p.services == nil {
		*p = Period{map[endpoint]uint64{}, map[string]bool{}, map[string]bool{}}
	}
	p.services[service] = true
	if incomplete {
		p.incomplete[service] = true
	}
}

// add adds what a process has counted.
func (c *Counter) add(service string, ended map[string]uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.period.note(service, false)
	for name, n := range ended {
		key := endpoint{service, name}
		if _, known := c.period.ended[key]; !known && len(c.period.ended) >= maxEndpoints {
			c.period.incomplete[service] = true
			continue
		}
		c.period.ended[key] += n
	}
}

// Miss notes that requests to a service may not have been counted.
func (c *Counter) Miss(service string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.period.note(service, true)
}

// EndPeriod returns the requests since the last call. A service whose counters were read just before has a number in the
// next period, too, even if they are not read again in it.
func (c *Counter) EndPeriod() *Period {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.period
	c.period = Period{}
	for service, read := range p.services {
		if read {
			c.period.note(service, false)
			c.period.services[service] = false
		}
	}
	return &p
}

// Set sets the numbers of requests of endpoints.
func Set[A any](p *Period, endpoints []tally.Name[A]) {
	for i := range endpoints {
		e := &endpoints[i]
		if _, counted := p.services[e.Service]; counted && e.Name != "" {
			e.Requests = &tally.Requests{Ended: p.ended[endpoint{e.Service, e.Name}], AtLeast: p.incomplete[e.Service]}
		}
	}
}

// Process reads the counters of one program. The zero value is ready for use.
type Process struct {
	// follows reports whether the counters are to be read again.
	follows atomic.Bool

	mu sync.Mutex // guards the rest
	// begun is false before the first call of Read.
	begun bool
	// table is the last table that was read, names has the names by number, and last what the counters were.
	table *reader.Table
	names []string
	last  []uint64
}

// Read adds the requests since the last call to c, which may be nil. The first call adds none. If the program begins to
// publish after that, all its requests count. The program may block the call.
//
// published returns the current layout and the name of the service. Read calls it itself, so that the layouts of several
// calls at the same time are in order.
func (p *Process) Read(c *Counter, process *reader.Process, published func() (*reader.ThreadLayout, string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := !p.begun
	p.begun = true
	layout, service := published()
	if layout == nil || layout.Names == nil {
		p.End(c, service)
		p.table = nil
		return
	}
	if layout.Requests == nil { // An older version, which publishes only the names.
		c.Miss(service)
		return
	}
	if !reflect.DeepEqual(p.table, layout.Requests) {
		p.End(c, service)
		p.table, p.names, p.last = layout.Requests, nil, nil
		p.follows.Store(true)
	}
	if !p.follows.Load() { // An earlier call has failed, or the program is not read any more.
		c.Miss(service)
		return
	}
	names, err := process.Names(layout.Names, slices.Clip(p.names))
	var counts []uint64
	if err == nil {
		counts, err = process.Requests(p.table, len(names))
	}
	if err != nil {
		p.End(c, service)
		return
	}
	ended := map[string]uint64{}
	for i, n := range counts {
		if i < len(p.last) {
			n -= min(p.last[i], n) // Counters only grow, unless the program is hostile.
		}
		if n > 0 && !first {
			ended[names[i]] += n
		}
	}
	p.names, p.last = names, counts
	c.add(service, ended)
}

// End notes that the program is not read any more: its requests since the last call of Read are missing. Further calls do
// nothing, and so do those for programs that do not count their requests. It does not wait for Read.
func (p *Process) End(c *Counter, service string) {
	if p.follows.Swap(false) {
		c.Miss(service)
	}
}
