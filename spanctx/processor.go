// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/environment"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goroutines"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/names"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/scope"
	"github.com/otelctx/otelctx/internal/wire"
	_ "github.com/otelctx/otelctx/resourcepublisher" // publishes the advertisement
)

// ErrProcessorExists means that this process already has a SpanProcessor.
var ErrProcessorExists = errors.New("active spans are already published")

// SpanProcessor publishes the active span of each goroutine. It may be registered with several
// TracerProviders. A SpanProcessor from [NewSpanProcessor] stops when the first of them is shut
// down. One from [ForProvider] is shared by several calls, and stops when the last provider that
// shares it is shut down. It is safe for concurrent use.
type SpanProcessor struct {
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
	// keys lists the attribute keys to publish, nil for none. Hold building to change it.
	keys atomic.Pointer[scope.KeyMap]
	// carrierErr joins the reasons why requested carriers, or the tables that they refer to, are
	// off.
	carrierErr error

	refusedKeys atomic.Int64

	stopped atomic.Bool
	// providers counts the providers that share the SpanProcessor. building guards providers and
	// shutdownErr.
	providers   int
	shutdownErr error
}

var _ sdktrace.SpanProcessor = (*SpanProcessor)(nil)

// active is the SpanProcessor of this process, or nil. There can be only one, because a process has
// one advertisement and a goroutine has one label pointer.
var active atomic.Pointer[SpanProcessor]

// building serializes the construction and shutdown of SpanProcessors, so that nobody uses one that
// is half built.
var building sync.Mutex

// NewSpanProcessor returns a SpanProcessor that publishes the active span through the carriers
// chosen by opts, and advertises them: in the process context of package resourcepublisher or,
// while there is no process context, in a separate mapping. If that mapping cannot be created, the
// reason goes to [otel.Handle].
//
// A process has at most one SpanProcessor. If it already has one, NewSpanProcessor changes nothing
// and fails. Use [SpanProcessor.AddAttributeKeys] to add attribute keys to
// the existing one.
//
// A carrier stays off if this Go runtime does not support it or if the kernel refuses to map its
// memory; [SpanProcessor.Err] returns the reason. The goroutine table and slots of layout 2 also
// need the span table. If no carrier works, NewSpanProcessor fails. The error wraps
// [ErrProcessorExists], or [errors.ErrUnsupported] where nothing can be published. Otherwise it
// says which option is invalid, why no carrier is on, or why the advertisement cannot be published.
func NewSpanProcessor(opts ...Option) (*SpanProcessor, error) {
	return newSpanProcessor(newConfig(opts))
}

func newSpanProcessor(c config) (*SpanProcessor, error) {
	p, refusedKeys, err := build(c)
	if err != nil {
		return nil, fmt.Errorf("publish active spans: %w", err)
	}
	p.countRefusedKeys(refusedKeys)
	return p, nil
}

// build creates a SpanProcessor and makes it active. refusedKeys is the number of attribute keys
// above the limit [scope.MaxKeys].
func build(c config) (_ *SpanProcessor, refusedKeys int, err error) {
	building.Lock()
	defer building.Unlock()
	if active.Load() != nil {
		return nil, 0, ErrProcessorExists
	}
	if !goruntime.Supported {
		return nil, 0, errors.ErrUnsupported
	}
	if err := c.check(); err != nil {
		return nil, 0, err
	}
	if c.noCarrier() {
		return nil, 0, errors.New("no carrier is on")
	}
	if c.runtime == nil {
		c.runtime = goruntime.Calibrate()
	}
	p := &SpanProcessor{config: c, providers: 1}
	keys, refusedKeys := p.keys.Load().Append(c.keys...)
	p.keys.Store(keys)
	p.cells, err = cells.New(cells.Options{Spare: p.isPublished, Evict: p.evict, Heap: c.heap})
	p.disable("span table is", err)
	p.cellsPublished = err == nil
	p.openCarriers()
	if p.threads == nil && !p.tablePublished && !p.records {
		return nil, 0, errors.Join(fmt.Errorf("no carrier is on: %w", p.carrierErr), p.closeMemory())
	}
	if c.names {
		p.names, err = names.New(c.heap)
		p.disable("names for other processes are", err)
		p.namesPublished = err == nil
	}
	p.data = newLiveSpanData(p.records)
	if err := advertise.Change(p.advertisement(), nil); err != nil {
		return nil, 0, errors.Join(err, p.closeMemory())
	}
	active.Store(p)
	return p, refusedKeys, nil
}

// openCarriers turns on the requested carriers. If this Go runtime does not support a carrier or
// the kernel refuses to map its memory, that carrier stays off without affecting the others.
func (p *SpanProcessor) openCarriers() {
	c := p.config
	var noSpanTable error
	if !p.cellsPublished {
		// Slots and entries may name ended spans, which readers detect by the span table.
		noSpanTable = errors.New("there is no span table")
	}
	p.openGoroutineTable(c.goroutineTable, noSpanTable)
	if c.threadSlots {
		err := noSpanTable
		if r := (ring.Config{Layout: wire.RingLayout2, Capacity: c.capacity, AttributeSpace: c.space, Heap: c.heap}); c.layout1 {
			r.Layout, r.AttributeSpace = wire.RingLayout1, 0
			p.threads, err = ring.New(r)
		} else if err == nil {
			p.threads, err = ring.New(r)
		}
		p.disable("thread slots are", err)
	}
	if c.goroutineRecord {
		err := gorecord.Available(c.runtime)
		p.records = err == nil
		p.disable("goroutine record is", err)
	}
}

// openGoroutineTable creates the goroutine table, which this package always needs. Other processes
// can find it only if asked is true, noSpanTable is nil, and goroutine ids can be read.
func (p *SpanProcessor) openGoroutineTable(asked bool, noSpanTable error) {
	err := noSpanTable
	if _, unknown := p.runtime.Offset(goruntime.GGoid); err == nil {
		err = unknown
	}
	private := p.heap || !asked || err != nil
	var mapErr error
	if p.goroutines, mapErr = goroutines.New(private); err == nil {
		err = mapErr
	}
	if asked {
		p.tablePublished = err == nil
		p.disable("goroutine table is", err)
	}
}

// disable adds the reason why a carrier or a table is off to p.carrierErr. It does nothing if
// reason is nil.
func (p *SpanProcessor) disable(carrier string, reason error) {
	if reason != nil {
		p.carrierErr = errors.Join(p.carrierErr, fmt.Errorf("%s off: %w", carrier, reason))
	}
}

// Carriers returns the names of the carriers that are on: thread_slots, goroutine_table,
// goroutine_record. [SpanProcessor.Err] returns why requested ones are off.
func (p *SpanProcessor) Carriers() (names []string) {
	if p == nil {
		return nil
	}
	for _, c := range []struct {
		on   bool
		name string
	}{{p.threads != nil, CarrierThreadSlots}, {p.tablePublished, CarrierGoroutineTable}, {p.records, CarrierGoroutineRecord}} {
		if c.on {
			names = append(names, c.name)
		}
	}
	return names
}

// WithPublishing publishes the spans of a TracerProvider. It is short for
// [sdktrace.WithSpanProcessor] with the result of [ForProvider].
func WithPublishing(opts ...Option) sdktrace.TracerProviderOption {
	return sdktrace.WithSpanProcessor(ForProvider(opts...))
}

// ForProvider returns a SpanProcessor to register with one TracerProvider, which also shuts it
// down. If the process already has a SpanProcessor, the provider shares it. Otherwise ForProvider
// creates one, like [NewSpanProcessor]. Use ForProvider for a provider that already exists:
//
//	tp.RegisterSpanProcessor(spanctx.ForProvider())
//
// Errors go to [otel.Handle], and so does the reason for each carrier that stays off. The provider
// works in any case. If nothing can be published, the result is nil; the methods of a nil
// SpanProcessor do nothing.
//
// A shared SpanProcessor stops with the Shutdown of the last provider that shares it. Keys of
// [WithAttributeKeys] are added to it. Other options that differ from its own have no effect, which
// is reported to [otel.Handle].
//
// ForProvider returns nil if the environment variable OTELCTX_SPANS_DISABLED=true is set, unless
// [WithEnabled] overrides it, and if OTELCTX_SPAN_CARRIERS=none is set, unless an option turns a
// carrier on. The package documentation lists the variables.
func ForProvider(opts ...Option) *SpanProcessor {
	c := newConfig(opts)
	if !c.enabled || c.noCarrier() && len(environment.SpanCarriers.Members(allCarriers...)) == 0 {
		return nil
	}
	for {
		p, err := newSpanProcessor(c)
		if errors.Is(err, ErrProcessorExists) {
			if p, err = share(opts); p == nil {
				continue // it was shut down in the meantime
			}
		} else if err == nil {
			err = p.Err()
		}
		if err != nil {
			otel.Handle(err)
		}
		return p
	}
}

// share adds a provider to those that share the SpanProcessor of this process, and returns the
// SpanProcessor, or nil if it has been shut down. The error names the options in opts that have no
// effect and the keys that cannot be added.
func share(opts []Option) (*SpanProcessor, error) {
	building.Lock()
	p := active.Load()
	if p != nil {
		p.providers++
	}
	building.Unlock()
	if p == nil {
		return nil, nil //nolint:nilnil // A concurrent shutdown is no error.
	}
	asked := p.config
	for _, o := range opts {
		asked = o.apply(asked)
	}
	return p, errors.Join(p.differs(asked), p.AddAttributeKeys(asked.keys[len(p.config.keys):]...))
}

// Err returns the reasons why requested carriers, or the tables of spans and names, are off, joined
// into one error. It is nil if all of them are on.
func (p *SpanProcessor) Err() error {
	if p == nil {
		return nil
	}
	return p.carrierErr
}

// AddAttributeKeys adds keys to those of [WithAttributeKeys]. They apply to spans that start
// afterwards. New keys are advertised before attributes are published with them, and duplicates are
// ignored. Keys cannot be removed. The space for attributes in slots is fixed at construction: see
// [WithSlotAttributeSpace]. After Shutdown, AddAttributeKeys does nothing.
//
// If the keys cannot be advertised, AddAttributeKeys returns an error, such as
// [resourcepublisher.ErrTooLarge], and changes nothing. Keys above the limit of 256 are not an
// error: see [SpanProcessor.RefusedAttributeKeys].
func (p *SpanProcessor) AddAttributeKeys(keys ...attribute.Key) error {
	if p == nil {
		return nil
	}
	refused, err := p.addKeys(keys)
	if err != nil {
		return fmt.Errorf("publish attribute keys: %w", err)
	}
	p.countRefusedKeys(refused)
	return nil
}

func (p *SpanProcessor) addKeys(keys []attribute.Key) (refused int, err error) {
	building.Lock()
	defer building.Unlock()
	if p.stopped.Load() {
		return 0, nil
	}
	more, refused := p.keys.Load().Append(p.removeReservedKeys(keys)...)
	if more != p.keys.Load() {
		if err := advertise.Change([]attribute.KeyValue{keyMapAttribute(more)}, nil); err != nil {
			return 0, err
		}
		p.keys.Store(more)
	}
	return refused, nil
}

// countRefusedKeys counts keys above the limit. It reports them to [otel.Handle] the first time.
func (p *SpanProcessor) countRefusedKeys(keys int) {
	if keys != 0 && p.refusedKeys.Add(int64(keys)) == int64(keys) {
		otel.Handle(fmt.Errorf("publish attribute keys: %d rejected, there are already %d", keys, scope.MaxKeys))
	}
}

// RefusedAttributeKeys returns how many keys were rejected because there were already 256. A key
// that is rejected repeatedly counts each time.
func (p *SpanProcessor) RefusedAttributeKeys() int {
	if p == nil {
		return 0
	}
	return int(p.refusedKeys.Load())
}

// SpansWithoutName returns how often a span was published without its name or endpoint because the
// limit of 4,095 names had been reached: at its start, or when [Attach] or [Refresh] published its
// current name. See [WithSpanNames].
func (p *SpanProcessor) SpansWithoutName() int64 {
	if p == nil {
		return 0
	}
	return p.names.LeftOut()
}

// ForceFlush does nothing, because nothing is buffered.
func (p *SpanProcessor) ForceFlush(context.Context) error { return nil }

// Shutdown withdraws the advertisement, ends the published spans, and closes the slots and tables.
// If several providers share the SpanProcessor through [ForProvider], only the last Shutdown does
// so. ctx is not used, because Shutdown does not wait. Spans may start and end during and after
// Shutdown; they are not published. Later calls return the same result.
func (p *SpanProcessor) Shutdown(context.Context) error {
	if p == nil {
		return nil
	}
	building.Lock()
	defer building.Unlock()
	p.providers = max(p.providers-1, 0)
	if p.providers > 0 || p.stopped.Load() {
		return p.shutdownErr
	}
	// OnStart makes a span live, then passes a barrier, then checks stopped. So either OnStart sees
	// stopped, or the loop below sees the span.
	p.stopped.Store(true)
	err := p.withdrawAdvertisement()
	p.profile.running(time.Now()) // so that evict gets a recent result from wasRunning
	p.cells.All(func(r cells.Ref) { p.evict(r) })
	p.shutdownErr = errors.Join(err, p.closeMemory())
	active.CompareAndSwap(p, nil)
	return p.shutdownErr
}

// closeMemory closes the thread slots and all tables.
func (p *SpanProcessor) closeMemory() error {
	return errors.Join(p.cells.Close(), p.names.Close(), p.goroutines.Close(), p.threads.Close())
}
