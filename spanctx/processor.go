// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goroutines"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/names"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/scope"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
	_ "github.com/otelctx/otelctx/resourcepublisher" // publishes the advertisement
)

// path publishes the spans of all providers, from the first provider until the last one is gone. Another
// path follows it when a provider starts a span after that.
type path struct {
	config

	cells *cells.Table
	// cellsPublished and namesPublished are true if other processes can find the span table and the
	// name table, respectively.
	cellsPublished, namesPublished bool
	data                           liveSpanData
	// threads is nil if the thread slots are off.
	threads *ring.Ring
	// goroutines is the goroutine table. tablePublished is true if other processes can find it.
	goroutines     *goroutines.Table
	tablePublished bool
	records        bool
	// names is the name table, nil if names are not published.
	names   *names.Table
	profile ownProfile
	// keys lists the attribute keys to publish, nil for none. Hold the lock of package providers to
	// change it.
	keys atomic.Pointer[scope.KeyMap]
	// carrierErr joins the reasons why requested carriers, or the tables that they refer to, are
	// off.
	carrierErr error

	refusedKeys atomic.Int64

	stopped atomic.Bool
}

// active is the path of this process, or nil while nothing is published. There can be only one, because a
// process has one advertisement and a goroutine has one label pointer.
var active atomic.Pointer[path]

// build creates a path and makes it active. The lock of package providers is held.
func build(c config) error {
	if !goruntime.Supported {
		return errors.ErrUnsupported
	}
	if c.runtime == nil {
		c.runtime = goruntime.Calibrate()
	}
	p := &path{config: c}
	keys, refused := p.keys.Load().Append(c.keys...)
	p.keys.Store(keys)
	var err error
	p.cells, err = cells.New(cells.Options{Spare: p.isPublished, Evict: p.evict, Memory: c.memory})
	if p.cells == nil {
		return err
	}
	p.disable("span table is", err)
	p.cellsPublished = err == nil
	if err := p.openCarriers(); err != nil {
		return errors.Join(err, p.closeMemory())
	}
	if p.threads == nil && !p.tablePublished && !p.records {
		return errors.Join(fmt.Errorf("no carrier is on: %w", p.carrierErr), p.closeMemory())
	}
	if c.names {
		p.names, err = names.New(c.memory)
		p.disable("names for other processes are", err)
		p.namesPublished = err == nil
	}
	p.data.records = p.records
	if err := advertise.Change(p.advertisement(), nil); err != nil {
		return errors.Join(err, p.closeMemory())
	}
	p.countRefusedKeys(refused)
	active.Store(p)
	return nil
}

// openCarriers turns on the requested carriers. If this Go runtime does not support a carrier or
// the kernel refuses to map its memory, that carrier stays off without affecting the others.
// openCarriers returns an error if there is no memory for the goroutine table, which this package
// always needs.
func (p *path) openCarriers() error {
	c := p.config
	var noSpanTable error
	if !p.cellsPublished {
		// Slots and entries may name ended spans, which readers detect by the span table.
		noSpanTable = errors.New("there is no span table")
	}
	// Without goroutine ids, positions belong to threads: see locateThread.
	_, noIDs := p.runtime.Offset(goruntime.GGoid)
	if err := p.openGoroutineTable(cmp.Or(noSpanTable, noIDs)); err != nil {
		return err
	}
	if c.threadSlots {
		err := noSpanTable
		if r := (ring.Config{Layout: wire.RingLayout2, Capacity: c.capacity, AttributeSpace: c.space, Heap: c.memory == vma.Heap}); c.layout1 {
			r.Layout, r.AttributeSpace = wire.RingLayout1, 0
			p.threads, err = ring.New(r)
		} else if err == nil {
			p.threads, err = ring.New(r)
		}
		p.disable("thread slots are", err)
	}
	if c.labels != LabelsOff {
		err := noIDs
		if err == nil {
			err = gorecord.Available(c.runtime)
		}
		p.records = err == nil
		p.disable("goroutine record is", err)
	}
	return nil
}

// openGoroutineTable creates the goroutine table, or returns an error if there is no memory for it.
// Other processes can find it only if reason is nil.
func (p *path) openGoroutineTable(reason error) error {
	memory := p.memory
	if memory == vma.Published && reason != nil {
		memory = vma.Private
	}
	var err error
	if p.goroutines, err = goroutines.New(memory); p.goroutines == nil {
		return err
	}
	reason = cmp.Or(reason, err)
	p.tablePublished = reason == nil
	p.disable("goroutine table is", reason)
	return nil
}

// disable adds the reason why a carrier or a table is off to p.carrierErr. It does nothing if
// reason is nil.
func (p *path) disable(carrier string, reason error) {
	if reason != nil {
		p.carrierErr = errors.Join(p.carrierErr, fmt.Errorf("%s off: %w", carrier, reason))
	}
}

// stats implements [SpanProcessor.Stats].
func (p *path) stats() Stats {
	if p == nil {
		return Stats{}
	}
	s := Stats{Off: p.carrierErr, RefusedAttributeKeys: p.refusedKeys.Load(), SpansWithoutName: p.names.LeftOut()}
	for _, c := range []struct {
		on   bool
		name string
	}{{p.threads != nil, "thread_slots"}, {p.tablePublished, "goroutine_table"}, {p.records, "goroutine_record"}} {
		if c.on {
			s.Carriers = append(s.Carriers, c.name)
		}
	}
	return s
}

// addKeys adds attribute keys to those that are published. The lock of package providers is held.
func (p *path) addKeys(keys []attribute.Key) error {
	more, refused := p.keys.Load().Append(p.removeReservedKeys(keys)...)
	if more != p.keys.Load() {
		if err := advertise.Change([]attribute.KeyValue{keyMapAttribute(more)}, nil); err != nil {
			return fmt.Errorf("publish attribute keys: %w", err)
		}
		p.keys.Store(more)
	}
	p.countRefusedKeys(refused)
	return nil
}

// countRefusedKeys counts keys above the limit. It reports them to [otel.Handle] the first time.
func (p *path) countRefusedKeys(keys int) {
	if keys != 0 && p.refusedKeys.Add(int64(keys)) == int64(keys) {
		providers.Report(fmt.Errorf("publish attribute keys: %d rejected, there are already %d", keys, scope.MaxKeys))
	}
}

// shutdown withdraws the advertisement, ends the published spans, and closes the slots and tables. Spans
// may start and end meanwhile; they are not published. The lock of package providers is held.
func (p *path) shutdown() error {
	// OnStart makes a span live, then passes a barrier, then checks stopped. So either OnStart sees
	// stopped, or the loop below sees the span.
	p.stopped.Store(true)
	err := p.withdrawAdvertisement()
	p.profile.running(time.Now()) // so that evict gets a recent result from wasRunning
	p.cells.All(func(r cells.Ref) { p.evict(r) })
	active.Store(nil)
	return errors.Join(err, p.closeMemory())
}

// closeMemory closes the thread slots and all tables.
func (p *path) closeMemory() error {
	return errors.Join(p.cells.Close(), p.names.Close(), p.goroutines.Close(), p.threads.Close())
}
