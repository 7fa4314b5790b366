// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package spanpath determines which span each goroutine is in, and publishes it. It implements the
// contract of attribution (docs/design/0001-span-path.md) once, for packages spanctx and
// universalprofiling.
//
// A process has at most one [Path]. It always has a span table and a goroutine table. Its [Features] say what
// else it publishes: goroutine records, thread slots and Elastic's thread records. The packages turn features
// on and off while spans start and end.
package spanpath

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goroutines"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/keymap"
	"github.com/otelctx/otelctx/internal/names"
	"github.com/otelctx/otelctx/internal/ownprofile"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/vma"
)

// Features say what a [Path] publishes. They are immutable: [Path.Change] replaces them.
type Features struct {
	// Slots and Elastic are the thread slots and Elastic's thread records, nil if they are off.
	Slots   *ring.Ring
	Elastic *Elastic
	// Records is true if spans get goroutine records.
	Records bool
	// KeepLabels is true if the records of ended spans keep their labels. DatadogLabels is true if records
	// also have the labels of dd-trace-go.
	KeepLabels, DatadogLabels bool
	// Names is the name table, nil if names are not published.
	Names *names.Table
	// Keys lists the attribute keys to publish, nil for none.
	Keys *keymap.Map

	// hadRecords is true once records have been on, because goroutines may still have some installed.
	hadRecords bool
	// closed is true once nobody needs the path any longer.
	closed bool
}

// Path publishes the spans of this process. See [Join].
type Path struct {
	runtime    *goruntime.Runtime
	spans      *spantable.Table
	goroutines *goroutines.Table
	// spansErr and goroutinesErr say why other processes cannot find the table.
	spansErr, goroutinesErr error

	// Profile decides whether the labels of ended spans are kept.
	Profile ownprofile.Detector

	features atomic.Pointer[Features]
	records  liveRecords

	evicted  atomic.Uint64
	reported atomic.Bool

	// users counts calls of Join without Leave. The lock of package providers is held to change it.
	users int
}

// current is the path of this process, or nil. There can be only one, because a goroutine has one
// entry and one label pointer, and a thread has one slot and one record.
var current atomic.Pointer[Path]

// Current returns the path of this process, or nil if nothing is published.
func Current() *Path { return current.Load() }

// Join returns the path of this process for one more user, and creates it if there is none. The
// arguments apply to a new path. The path publishes nothing until the user calls [Path.Change]. The
// caller holds the lock of package providers, here and for Change and [Path.Leave].
func Join(runtime *goruntime.Runtime, memory vma.Kind) (*Path, error) {
	p := current.Load()
	if p == nil {
		p = &Path{runtime: runtime}
		p.features.Store(new(Features))
		p.spans, p.spansErr = spantable.New(spantable.Options{Spare: p.isPublished, Evict: p.Evict, Memory: memory})
		if p.spans == nil {
			return nil, p.spansErr
		}
		if p.goroutines, p.goroutinesErr = goroutines.New(memory); p.goroutines == nil {
			return nil, errors.Join(p.goroutinesErr, p.spans.Close())
		}
		current.Store(p)
	}
	p.users++
	return p, nil
}

// Change replaces the features. It ends the records, and clears the thread records, that are no longer
// published. The caller turns off memory only after that: goroutines may still store in it, but check
// the features afterwards.
func (p *Path) Change(change func(*Features)) {
	old := p.features.Load()
	features := *old
	change(&features)
	features.hadRecords = features.hadRecords || features.Records
	p.features.Store(&features)
	if old.Records && !features.Records {
		p.Profile.Running(time.Now())
		withdraw := old.withdrawsLabels(p.Profile.WasRunning())
		p.records.endAll(withdraw)
	}
	if old.Elastic != nil && old.Elastic != features.Elastic {
		old.Elastic.Records.ClearEverything()
	}
}

// Leave is Change for a user that no longer needs the path. If it was the last one, Leave also ends all
// spans and closes the tables. Spans may start and end meanwhile; they are not published.
func (p *Path) Leave(change func(*Features)) error {
	if p.users--; p.users > 0 {
		p.Change(change)
		return nil
	}
	current.Store(nil)
	// Start makes a span live, then passes a barrier, then checks the features. Either Start sees
	// that they have changed, or the loop below sees the span.
	p.Profile.Running(time.Now()) // so that evict gets a recent result from wasRunning
	closed := *p.features.Load()
	closed.closed = true
	p.features.Store(&closed)
	p.spans.All(func(r spantable.Ref) { p.evict(r) })
	p.Change(change)
	return errors.Join(p.spans.Close(), p.goroutines.Close())
}

// ProviderGone ends the live spans of a provider that is gone, because the SDK does not report their end.
// The lock of package providers is held.
func ProviderGone(r *providers.Reference) {
	p := current.Load()
	if p == nil || r.Number == 0 {
		return
	}
	p.Profile.Running(time.Now()) // so that evict gets a recent result from WasRunning
	p.spans.All(func(ref spantable.Ref) {
		if p.spans.Provider(ref) == r.Number && p.evict(ref) {
			p.spans.Free(ref)
		}
	})
}

// Features returns the current features.
func (p *Path) Features() *Features { return p.features.Load() }

// Runtime returns the facts about the Go runtime.
func (p *Path) Runtime() *goruntime.Runtime { return p.runtime }

// Spans returns the table of live spans. The error says why other processes cannot find it.
func (p *Path) Spans() (*spantable.Table, error) { return p.spans, p.spansErr }

// Goroutines returns the goroutine table. The error says why other processes cannot find it.
func (p *Path) Goroutines() (*goroutines.Table, error) { return p.goroutines, p.goroutinesErr }

// Evicted returns how many spans are no longer published because there were too many.
func (p *Path) Evicted() uint64 { return p.evicted.Load() }

// Evict ends a live span because there are too many. It returns false if another goroutine ended the
// span first. Otherwise the caller owns the cell. It may be called while pinned.
func (p *Path) Evict(ref spantable.Ref) bool {
	if !p.evict(ref) {
		return false
	}
	p.evicted.Add(1)
	return true
}

// reportEvicted reports once that there were too many spans.
//
//go:noinline
func (p *Path) reportEvicted() {
	if !p.features.Load().closed && p.reported.CompareAndSwap(false, true) {
		go otel.Handle(fmt.Errorf("more than %d spans are live: the oldest are no longer published", spantable.Capacity))
	}
}

// withdrawsLabels reports whether to withdraw the labels of an ended span. profiled is true while
// the process is taking a CPU profile of itself.
func (f *Features) withdrawsLabels(profiled bool) bool {
	return !f.KeepLabels && !raceEnabled && !profiled
}

// isPublished reports whether the goroutine that started a span still exists and has stored that
// span as its active span. It may be called while pinned.
func (p *Path) isPublished(ref spantable.Ref, goid uint64, g uintptr) bool {
	active, known := p.goroutines.Load(goid, g)
	return known && active.Ref() == ref && p.runtime.Is(g, goid)
}

// record returns the record of a span, or nil if there is none.
func (p *Path) record(ref spantable.Ref) *gorecord.Record { return p.records.get(ref) }
