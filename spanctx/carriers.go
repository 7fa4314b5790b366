// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/keymap"
	"github.com/otelctx/otelctx/internal/names"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
	_ "github.com/otelctx/otelctx/resourcepublisher" // publishes the advertisement
)

// carriers publish the spans of all providers, from the first provider until the last one is gone. Other
// carriers follow when a provider starts a span after that.
type carriers struct {
	config

	path *spanpath.Path
	// slots is nil if the thread slots are off, and names if names are not published.
	slots   *ring.Ring
	names   *names.Table
	records bool
	// spansPublished, tablePublished and namesPublished are true if other processes can find the span
	// table, the goroutine table and the name table, respectively.
	spansPublished, tablePublished, namesPublished bool
	// err joins the reasons why requested carriers, or the tables that they refer to, are off.
	err error

	refusedKeys atomic.Int64
}

// current are the carriers of this process, or nil while nothing is published. There can be only one set,
// because a process has one advertisement and a goroutine has one label pointer.
var current atomic.Pointer[carriers]

// open opens the carriers and makes them the current ones. The lock of package providers is held.
func (c config) open() error {
	if !goruntime.Supported {
		return errors.ErrUnsupported
	}
	if c.runtime == nil {
		c.runtime = goruntime.Calibrate()
	}
	path, err := spanpath.Join(c.runtime, c.memory)
	if err != nil {
		return err
	}
	opened := &carriers{config: c, path: path}
	if err := opened.start(); err != nil {
		return errors.Join(err, opened.close())
	}
	current.Store(opened)
	return nil
}

// start opens the carriers, advertises them, and makes the path use them.
func (c *carriers) start() error {
	c.openAll()
	if c.slots == nil && !c.tablePublished && !c.records {
		return fmt.Errorf("no carrier is on: %w", c.err)
	}
	if c.config.names {
		var err error
		c.names, err = names.New(c.memory)
		c.disable("names for other processes are", err)
		c.namesPublished = err == nil
	}
	var noKeys *keymap.Map
	keys, refused := noKeys.Append(c.keys...)
	if err := advertise.Change(c.advertisement(keys), nil); err != nil {
		return err
	}
	c.countRefusedKeys(refused)
	c.path.Change(func(f *spanpath.Features) {
		f.Slots, f.Records, f.Names, f.Keys = c.slots, c.records, c.names, keys
		f.KeepLabels, f.DatadogLabels = c.labels == LabelsKept, c.datadogLabels
	})
	return nil
}

// openAll turns on the requested carriers. If this Go runtime does not support a carrier or the kernel
// refuses to map its memory, that carrier stays off without affecting the others.
func (c *carriers) openAll() {
	_, err := c.path.Spans()
	c.spansPublished = err == nil
	c.disable("span table is", err)
	var noSpanTable error
	if !c.spansPublished {
		// Slots and entries may name ended spans, which readers detect by the span table.
		noSpanTable = errors.New("there is no span table")
	}
	// Without goroutine ids, active spans belong to threads.
	_, noIDs := c.runtime.Offset(goruntime.GGoid)
	_, unmapped := c.path.Goroutines()
	noTable := cmp.Or(noSpanTable, noIDs, unmapped)
	c.tablePublished = noTable == nil
	c.disable("goroutine table is", noTable)
	if c.threadSlots {
		err := noSpanTable
		if r := (ring.Config{Layout: wire.RingLayout2, Capacity: c.capacity, AttributeSpace: c.space, Heap: c.memory == vma.Heap}); c.layout1 {
			r.Layout, r.AttributeSpace = wire.RingLayout1, 0
			c.slots, err = ring.New(r)
		} else if err == nil {
			c.slots, err = ring.New(r)
		}
		c.disable("thread slots are", err)
	}
	if c.labels != LabelsOff {
		err := noIDs
		if err == nil {
			err = gorecord.Available(c.runtime)
		}
		c.records = err == nil
		c.disable("goroutine record is", err)
	}
}

// disable adds the reason why a carrier or a table is off to c.err. It does nothing if
// reason is nil.
func (c *carriers) disable(carrier string, reason error) {
	if reason != nil {
		c.err = errors.Join(c.err, fmt.Errorf("%s off: %w", carrier, reason))
	}
}

// stats implements [SpanProcessor.Stats].
func (c *carriers) stats() Stats {
	if c == nil {
		return Stats{}
	}
	s := Stats{Off: c.err, RefusedAttributeKeys: c.refusedKeys.Load(), SpansWithoutName: c.names.LeftOut(), Evicted: c.path.Evicted()}
	for _, carrier := range []struct {
		on   bool
		name string
	}{{c.slots != nil, "thread_slots"}, {c.tablePublished, "goroutine_table"}, {c.records, "goroutine_record"}} {
		if carrier.on {
			s.Carriers = append(s.Carriers, carrier.name)
		}
	}
	return s
}

// addKeys adds to the published attribute keys. The lock of package providers is held.
func (c *carriers) addKeys(keys []attribute.Key) error {
	old := c.path.Features().Keys
	more, refused := old.Append(c.removeReservedKeys(keys)...)
	if more != old {
		if err := advertise.Change([]attribute.KeyValue{keyMapAttribute(more)}, nil); err != nil {
			return fmt.Errorf("publish attribute keys: %w", err)
		}
		c.path.Change(func(f *spanpath.Features) { f.Keys = more })
	}
	c.countRefusedKeys(refused)
	return nil
}

// countRefusedKeys counts keys above the limit. It reports them to [otel.Handle] the first time.
func (c *carriers) countRefusedKeys(keys int) {
	if keys != 0 && c.refusedKeys.Add(int64(keys)) == int64(keys) {
		providers.Report(fmt.Errorf("publish attribute keys: %d rejected, there are already %d", keys, keymap.MaxKeys))
	}
}

// shutdown withdraws the advertisement, stops publishing, and closes the carriers. Spans may start and end
// meanwhile; they are not published. The lock of package providers is held.
func (c *carriers) shutdown() error {
	current.Store(nil)
	return errors.Join(c.withdrawAdvertisement(), c.close())
}

// close makes the path stop using the carriers, and closes them.
func (c *carriers) close() error {
	err := c.path.Leave(func(f *spanpath.Features) { f.Slots, f.Records, f.Names, f.Keys = nil, false, nil, nil })
	return errors.Join(err, c.names.Close(), c.slots.Close())
}
