// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/spanctx"
)

// entry is a live span in the ledger.
type entry struct {
	TraceID         string `json:"trace_id"`
	SpanID          string `json:"span_id"`
	LocalRootSpanID string `json:"local_root_span_id"`
	Name            string `json:"name"`
	Endpoint        string `json:"endpoint"`
	Start           int64  `json:"start_time_unix_nano"`
	// Goroutine is the id of the goroutine that started the span or, if that has exited, the lowest id of
	// those that have attached it. Joined lists the ids of the others that have attached it.
	Goroutine uint64   `json:"goroutine"`
	Joined    []uint64 `json:"joined"`
	// Leaked is empty if a goroutine is in the span or in a descendant of it. Otherwise it tells what the
	// goroutine that started the span did: exited or moved_on.
	Leaked string `json:"leaked"`

	span    trace.Span
	starter uint64
	parent  *entry // may have ended
	// attached is the number of goroutines that have attached the span.
	attached int
}

// ledger is a span processor that records live spans and the goroutines that started them. It has no lock, so
// goroutines must not use spans at the same time.
type ledger struct {
	live map[trace.SpanID]*entry
}

func (l *ledger) OnStart(parent context.Context, span sdktrace.ReadWriteSpan) {
	sc := span.SpanContext()
	e := &entry{
		TraceID: sc.TraceID().String(), SpanID: sc.SpanID().String(), Name: span.Name(), Start: span.StartTime().UnixNano(),
		starter: goroutineID(), span: span,
	}
	e.LocalRootSpanID, e.Endpoint = e.SpanID, e.Name
	if e.parent = l.live[trace.SpanContextFromContext(parent).SpanID()]; e.parent != nil {
		e.LocalRootSpanID, e.Endpoint = e.parent.LocalRootSpanID, e.parent.Endpoint
	}
	l.live[sc.SpanID()] = e
}

func (l *ledger) OnEnd(span sdktrace.ReadOnlySpan) {
	delete(l.live, span.SpanContext().SpanID())
}

// Shutdown does nothing.
func (*ledger) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (*ledger) ForceFlush(context.Context) error { return nil }

// goroutineID returns the id of the calling goroutine, which it takes from the goroutine's stack trace.
func goroutineID() uint64 {
	text := make([]byte, 64)
	text = text[:runtime.Stack(text, false)]
	id, err := strconv.ParseUint(strings.Fields(string(text))[1], 10, 64)
	must(err)
	return id
}

// staff is a group of goroutines that start, end, hand over and leak spans at random.
type staff struct {
	ledger
	tracer  trace.Tracer
	tickets chan struct{}
	acted   sync.WaitGroup
	// turn is held during each action. It protects the ledger and the fields below.
	turn    sync.Mutex
	members map[uint64]*member
	// abandoned lists live spans that were left by the goroutines that started them.
	abandoned []*entry
}

// member is a goroutine of the staff. It is in the span of the last element of places.
type member struct {
	id     uint64
	places []place
}

// place is a span that a goroutine has started or attached.
type place struct {
	*entry
	detach func() // nil if the goroutine has started the span
}

// keepLedger runs count goroutines. For each line "N", they take N actions in total. When all are idle again, it
// answers with the live spans in JSON.
func keepLedger(count int) {
	s := &staff{ledger: ledger{live: map[trace.SpanID]*entry{}}, tickets: make(chan struct{}), members: map[uint64]*member{}}
	s.tracer = newTracer(&s.ledger)
	fmt.Println("started")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		actions, err := strconv.Atoi(in.Text())
		must(err)
		var hired sync.WaitGroup
		for range count - len(s.members) {
			hired.Add(1)
			go s.work(hired.Done)
		}
		hired.Wait()
		s.acted.Add(actions)
		for range actions {
			s.tickets <- struct{}{}
		}
		s.acted.Wait()
		b, err := json.Marshal(s.entries())
		must(err)
		fmt.Println(string(b))
	}
}

// work runs a member. It calls hired, and then takes one action for each ticket that it receives, until
// an action makes the goroutine exit.
func (s *staff) work(hired func()) {
	m := &member{id: goroutineID()}
	s.turn.Lock()
	s.members[m.id] = m
	s.turn.Unlock()
	hired()
	for range s.tickets {
		exits := s.act(m)
		s.acted.Done()
		if exits {
			return
		}
	}
}

// act takes a random action. It returns true if the goroutine must exit. It never ends a span that is attached on a
// goroutine, because the span's cell might be reused, and then readers could not tell which span that goroutine is in.
func (s *staff) act(m *member) (exits bool) {
	const most = 3 // the maximum depth of spans; a cell has as many ancestors
	s.turn.Lock()
	defer s.turn.Unlock()
	last := len(m.places) - 1
	switch action := rand.IntN(10); {
	case action < 4 && len(m.places) < most:
		ctx := context.Background()
		if last >= 0 {
			ctx = trace.ContextWithSpan(ctx, m.places[last].span)
		}
		_, span := s.tracer.Start(ctx, "operation "+strconv.Itoa(rand.IntN(20)))
		m.places = append(m.places, place{entry: s.live[span.SpanContext().SpanID()]})
	case action < 7 && last >= 0:
		if p := m.places[last]; p.detach != nil {
			p.detach()
			p.attached--
		} else if p.attached == 0 {
			p.span.End()
		} else {
			return false
		}
		m.places = m.places[:last]
	case action == 7 && len(m.places) < most:
		for _, e := range s.live { // in random order
			if e.parent == nil && e.starter != m.id {
				e.attached++
				m.places = append(m.places, place{e, spanctx.Attach(trace.ContextWithSpan(context.Background(), e.span)).Detach})
				break
			}
		}
	case action == 8:
		if exits = rand.IntN(2) == 0 && len(s.members) > 1; exits {
			delete(s.members, m.id)
		} else {
			spanctx.Attach(context.Background())
		}
		for _, p := range m.places {
			if p.detach != nil {
				p.attached--
			} else {
				s.abandoned = append(s.abandoned, p.entry)
			}
		}
		m.places = nil
	case action == 9 && len(s.abandoned) > 0:
		i := rand.IntN(len(s.abandoned))
		if e := s.abandoned[i]; e.starter != m.id && e.attached == 0 {
			s.abandoned = slices.Delete(s.abandoned, i, i+1)
			e.span.End()
		}
	}
	return exits
}

// entries updates Goroutine, Joined and Leaked of the live spans, and returns these spans.
func (s *staff) entries() []*entry {
	s.turn.Lock()
	defer s.turn.Unlock()
	for _, e := range s.live {
		e.Goroutine, e.Joined = e.starter, []uint64{}
	}
	occupied := map[*entry]bool{}
	for _, m := range s.members {
		if len(m.places) == 0 {
			continue
		}
		in := m.places[len(m.places)-1]
		for e := in.entry; e != nil; e = e.parent {
			occupied[e] = true
		}
		if in.detach != nil {
			in.Joined = append(in.Joined, m.id)
		}
	}
	all := make([]*entry, 0, len(s.live))
	for _, e := range s.live {
		switch {
		case occupied[e]:
			e.Leaked = ""
		case s.members[e.starter] == nil:
			e.Leaked = "exited"
		default:
			e.Leaked = "moved_on"
		}
		slices.Sort(e.Joined)
		if s.members[e.starter] == nil && len(e.Joined) > 0 {
			e.Goroutine, e.Joined = e.Joined[0], e.Joined[1:]
		}
		all = append(all, e)
	}
	return all
}
