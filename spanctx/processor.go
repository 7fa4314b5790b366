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
	_ "github.com/otelctx/otelctx/resourcepublisher" // publishes what is advertised
)

// ErrProcessorExists says that this process has a SpanProcessor already.
var ErrProcessorExists = errors.New("active spans are already published")

// SpanProcessor publishes the active span. [NewSpanProcessor] makes one, which may be
// registered with several TracerProviders; the first of them that is shut down ends it. With
// [ForProvider] it is the last. It is safe for concurrent use.
type SpanProcessor struct {
	config

	cells *cells.Table
	// listed is whether other processes find the cells, namesListed whether they find names.
	listed, namesListed bool
	data                liveSpanData
	// threads is nil where the thread slots are off.
	threads *ring.Ring
	// goroutines has what each goroutine is in. tableOn is whether other processes find it.
	goroutines *goroutines.Table
	tableOn    bool
	records    bool
	// names are those of spans; nil if they are not published.
	names   *names.Table
	profile ownProfile
	// keys are those of the attributes that are published with spans; nil is none. They
	// change with building held.
	keys atomic.Pointer[scope.KeyMap]
	// refused is why carriers that were asked for are off.
	refused error

	refusedKeys atomic.Int64

	stopped atomic.Bool
	// users is how many providers share it; building guards it, and shutdownErr.
	users       int
	shutdownErr error
}

var _ sdktrace.SpanProcessor = (*SpanProcessor)(nil)

// active is the SpanProcessor of this process, or nil. There is one because there is
// one advertisement of it, and one label pointer on each goroutine.
var active atomic.Pointer[SpanProcessor]

// building is held while a SpanProcessor comes up: nobody may find one that is not
// whole yet.
var building sync.Mutex

// NewSpanProcessor returns a SpanProcessor that publishes the active span by the carriers
// that opts choose, and advertises them. The advertisement is in the process context of
// package resourcepublisher, whichever comes up first. While there is none, it is in a
// mapping of its own. What keeps readers from finding that mapping goes to [otel.Handle].
//
// If the process has a SpanProcessor already, nothing changes, and opts have no effect.
// [SpanProcessor.AddAttributeKeys] adds keys of attributes to that one.
//
// A carrier is left off if this Go runtime does not allow for it, or the kernel refuses its memory;
// [SpanProcessor.Err] says why. Slots of layout 2 are also off without memory for the span table.
// The error wraps [ErrProcessorExists], or [errors.ErrUnsupported] where nothing can be published.
// Else it names the option that cannot be met, what keeps the advertisement from being published,
// or the system call that failed.
func NewSpanProcessor(opts ...Option) (*SpanProcessor, error) {
	return newSpanProcessor(newConfig(opts))
}

func newSpanProcessor(c config) (*SpanProcessor, error) {
	p, refusedKeys, err := build(c)
	if err != nil {
		return nil, fmt.Errorf("publish active spans: %w", err)
	}
	p.refuse(refusedKeys)
	return p, nil
}

// build returns a SpanProcessor that is active, and how many of the keys it has no room for.
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
	p := &SpanProcessor{config: c, users: 1}
	keys, refusedKeys := p.keys.Load().Append(c.keys...)
	p.keys.Store(keys)
	p.cells, err = cells.New(cells.Options{Spare: p.isShown, Evict: p.evict, Heap: c.heap})
	p.off("span table is", err)
	p.listed = err == nil
	p.openCarriers()
	if p.threads == nil && !p.tableOn && !p.records {
		return nil, 0, errors.Join(fmt.Errorf("no carrier is on: %w", p.refused), p.closeMemory())
	}
	if c.names {
		p.names, err = names.New(c.heap)
		p.off("names for other processes are", err)
		p.namesListed = err == nil
	}
	p.data = newLiveSpanData(p.records)
	if err := advertise.Change(p.advertisement(), nil); err != nil {
		return nil, 0, errors.Join(err, p.closeMemory())
	}
	active.Store(p)
	return p, refusedKeys, nil
}

// openCarriers turns on the carriers that are asked for. A carrier is off if this Go runtime
// does not allow for it, or the kernel gives it no memory. The others are on all the same.
func (p *SpanProcessor) openCarriers() {
	c := p.config
	var noSpanTable error
	if !p.listed {
		// Slots and entries go on naming spans that have ended, and only the span table tells.
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
		p.off("thread slots are", err)
	}
	if c.goroutineRecord {
		err := gorecord.Available(c.runtime)
		p.records = err == nil
		p.off("goroutine record is", err)
	}
}

// openGoroutineTable makes the goroutine table. This package needs it in any case; other processes
// find it if it is asked for, and noSpanTable is nil.
func (p *SpanProcessor) openGoroutineTable(asked bool, noSpanTable error) {
	err := noSpanTable
	if _, unknown := p.config.runtime.Offset(goruntime.GGoid); err == nil {
		err = unknown
	}
	private := p.config.heap || !asked || err != nil
	var mapErr error
	if p.goroutines, mapErr = goroutines.New(private); err == nil {
		err = mapErr
	}
	if asked {
		p.tableOn = err == nil
		p.off("goroutine table is", err)
	}
}

// off notes why something is off, if it is.
func (p *SpanProcessor) off(carrier string, reason error) {
	if reason != nil {
		p.refused = errors.Join(p.refused, fmt.Errorf("%s off: %w", carrier, reason))
	}
}

// Carriers returns the names of the carriers that are on: thread_slots, goroutine_table,
// goroutine_record. [SpanProcessor.Err] says why others are not.
func (p *SpanProcessor) Carriers() (names []string) {
	if p == nil {
		return nil
	}
	for _, c := range []struct {
		on   bool
		name string
	}{{p.threads != nil, CarrierThreadSlots}, {p.tableOn, CarrierGoroutineTable}, {p.records, CarrierGoroutineRecord}} {
		if c.on {
			names = append(names, c.name)
		}
	}
	return names
}

// WithPublishing is [sdktrace.WithSpanProcessor] with [ForProvider].
func WithPublishing(opts ...Option) sdktrace.TracerProviderOption {
	return sdktrace.WithSpanProcessor(ForProvider(opts...))
}

// ForProvider returns a [NewSpanProcessor] for one TracerProvider, which shuts it down. For
// a provider that exists already it is registered:
//
//	tp.RegisterSpanProcessor(spanctx.ForProvider())
//
// It returns no error, since an option cannot. Errors go to [otel.Handle], and so does the
// reason for each carrier that is left off. The provider works all the same. If nothing can
// be published the result is nil, whose methods do nothing.
//
// Where the process has a SpanProcessor already, the provider shares it, until the
// Shutdown of the last provider that does. The keys of [WithAttributeKeys] are added to it.
// Other options that ask for something else have no effect, which is reported. Without
// options the provider takes it as it is.
//
// With the environment variable OTELCTX_SPANS_DISABLED=true (default: false) it returns
// nil; [WithEnabled] overrides that. So it does with OTELCTX_SPAN_CARRIERS=none, if no
// option turns a carrier on. The package's documentation has the variables that
// choose what is published, which options override.
func ForProvider(opts ...Option) *SpanProcessor {
	c := newConfig(opts)
	if !c.enabled || c.noCarrier() && len(environment.SpanCarriers.Members(allCarriers...)) == 0 {
		return nil
	}
	for {
		p, err := newSpanProcessor(c)
		if errors.Is(err, ErrProcessorExists) {
			if p, err = share(opts); p == nil {
				continue // It has gone meanwhile.
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

// share returns the SpanProcessor of this process for one more provider, or nil if it has
// gone. The error says what it does not do that opts ask for.
func share(opts []Option) (*SpanProcessor, error) {
	building.Lock()
	p := active.Load()
	if p != nil {
		p.users++
	}
	building.Unlock()
	if p == nil {
		return nil, nil //nolint:nilnil // It has gone, which is no error.
	}
	asked := p.config
	for _, o := range opts {
		asked = o.apply(asked)
	}
	return p, errors.Join(p.differs(asked), p.AddAttributeKeys(asked.keys[len(p.config.keys):]...))
}

// Err returns why carriers that were asked for are off, all reasons joined, or nil.
func (p *SpanProcessor) Err() error {
	if p == nil {
		return nil
	}
	return p.refused
}

// AddAttributeKeys publishes attributes with more keys from now on, see
// [WithAttributeKeys]; keys that are published already are passed over. They are
// advertised first, and never taken back before Shutdown, after which this does nothing.
// Spans that have started before show what they have shown so far. Slots have room for attributes only if
// the SpanProcessor came up with some, see [WithAttributeSpace].
//
// The error says why the keys cannot be advertised, such as
// [resourcepublisher.ErrTooLarge]; then nothing has changed. That there is no room for
// more than 256 is no error: see [SpanProcessor.RefusedAttributeKeys].
func (p *SpanProcessor) AddAttributeKeys(keys ...attribute.Key) error {
	if p == nil {
		return nil
	}
	refused, err := p.addKeys(keys)
	if err != nil {
		return fmt.Errorf("publish attribute keys: %w", err)
	}
	p.refuse(refused)
	return nil
}

func (p *SpanProcessor) addKeys(keys []attribute.Key) (refused int, err error) {
	building.Lock()
	defer building.Unlock()
	if p.stopped.Load() {
		return 0, nil
	}
	more, refused := p.keys.Load().Append(p.ownKeys(keys)...)
	if more != p.keys.Load() {
		if err := advertise.Change([]attribute.KeyValue{keyMapAttribute(more)}, nil); err != nil {
			return 0, err
		}
		p.keys.Store(more)
	}
	return refused, nil
}

// refuse counts keys for which there is no room, and reports the first ones.
func (p *SpanProcessor) refuse(keys int) {
	if keys != 0 && p.refusedKeys.Add(int64(keys)) == int64(keys) {
		otel.Handle(fmt.Errorf("publish attribute keys: %d of them are refused, there are %d already", keys, scope.MaxKeys))
	}
}

// RefusedAttributeKeys returns how many keys were refused since there were 256 already;
// one that is tried again counts again.
func (p *SpanProcessor) RefusedAttributeKeys() int {
	if p == nil {
		return 0
	}
	return int(p.refusedKeys.Load())
}

// SpansWithoutName returns how often the name of a span, or of its parent, was not published when
// a span started: there were 4,095 other names already. See [WithSpanNames].
func (p *SpanProcessor) SpansWithoutName() int64 {
	if p == nil {
		return 0
	}
	return p.names.LeftOut()
}

// ForceFlush does nothing: there is nothing that waits.
func (p *SpanProcessor) ForceFlush(context.Context) error { return nil }

// Shutdown takes everything back: the advertisement, the spans that are still shown, and
// the slots. If several providers share the SpanProcessor by [ForProvider] the last Shutdown
// does so, and those before do nothing. ctx is not used, since there is nothing to wait for. Spans may
// start and end meanwhile and afterwards; they are not shown. Later calls return what the
// last one did.
func (p *SpanProcessor) Shutdown(context.Context) error {
	if p == nil {
		return nil
	}
	building.Lock()
	defer building.Unlock()
	p.users = max(p.users-1, 0)
	if p.users > 0 || p.stopped.Load() {
		return p.shutdownErr
	}
	// OnStart has a span be live by an atomic exchange and then looks whether all has
	// stopped. So either it sees that, or the span is seen here.
	p.stopped.Store(true)
	err := p.withdrawAdvertisement()
	p.profile.running(time.Now()) // evict goes by what this finds out
	p.cells.All(func(r cells.Ref) { p.evict(r) })
	p.shutdownErr = errors.Join(err, p.closeMemory())
	active.CompareAndSwap(p, nil)
	return p.shutdownErr
}

// closeMemory withdraws the memory that readers find.
func (p *SpanProcessor) closeMemory() error {
	return errors.Join(p.cells.Close(), p.names.Close(), p.goroutines.Close(), p.threads.Close())
}
