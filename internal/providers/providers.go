// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package providers decides what a process publishes while TracerProviders come and go. It is the only
// place that knows which providers are alive. Packages resourcepublisher, spanctx and universalprofiling
// publish what it tells them to.
//
// The rules, which the documentation of these packages repeats:
//
//  1. A provider counts from its first recorded span (with spanctx.PublishAll, from its first span) until
//     it is shut down or garbage collected.
//  2. Each call that asks for something to be published counts as a provider that is about to start: its
//     resource and spans are published at once, until its own Shutdown or a later such call.
//  3. The resource of the newest provider is published, and the next newest one's when that is shut
//     down; a provider is as old as the call that it was set up with.
//  4. Spans are published as long as there is a provider, and again when a provider that is alive starts
//     a span.
//
// docs/design/0013-providers.md has the reasons.
//
// The package also owns the lock that guards what a process has only once: see [Lock].
package providers

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/sdkspan"
)

// Publication is one kind of thing that a process publishes for its providers.
type Publication struct {
	// Apply publishes what the newest reference asks for, or withdraws everything if newest is nil. It is
	// called whenever references have come or gone, and does nothing if nothing changes. The lock is held.
	// The package that publishes sets Apply when it is initialized.
	Apply func(newest *Reference) error
	// NewOwner returns the Owner for a handle from [Publication.Automatic], or nil for no handle.
	NewOwner func() any
	// Gone is called with a reference that no longer counts if the spans of its provider are no longer
	// published. It may be nil. The lock is held.
	Gone func(*Reference)

	// references is sorted by rank, oldest first.
	references []*Reference
	// asking lists the latest handles that were opened with a resource, oldest first. A provider with that
	// resource belongs to the handle, even if none of its spans reach the handle.
	asking []*Handle
}

var (
	// Resources publishes the resource of the newest provider.
	Resources Publication
	// Spans publishes active spans.
	Spans Publication
	// Profiling publishes spans to Elastic Universal Profiling.
	Profiling Publication

	all = [...]*Publication{&Resources, &Spans, &Profiling}
)

// maxAsking bounds the memory of a program that keeps making options, with different resources.
const maxAsking = 64

// mu guards all variables of this package and the process-wide state of the packages that publish.
// Starting and ending spans does not use it, except for the first span of a provider.
var (
	mu       sync.Mutex
	pending  []error
	sequence uint64
	// numbers is the last Number.
	numbers uint16
)

// Lock locks the process-wide state of otelctx. The returned function unlocks it, and then passes the
// errors given to [Report] to [otel.Handle], because an error handler may start spans.
func Lock() (unlock func()) {
	mu.Lock()
	return func() {
		errs := pending
		pending = nil
		mu.Unlock()
		for _, err := range errs {
			otel.Handle(err)
		}
	}
}

// Report passes err, unless it is nil, to [otel.Handle] after the lock is released. The caller holds the
// lock.
func Report(err error) {
	if err != nil {
		pending = append(pending, err)
	}
}

// Handle represents one call that asked for something to be published, such as spanctx.WithPublishing
// or resourcepublisher.WithResource. Providers that are set up with its result hold references
// through it.
type Handle struct {
	// Owner is the value that the publishing package passed to Open.
	Owner any

	published *Publication
	// A handle with a higher rank, or the same rank and a higher number, is newer.
	automatic bool
	number    uint64
	resource  *resource.Resource

	// last is the reference of a provider whose spans this handle sees, usually the only one. others has
	// those of the other providers. It is replaced, never modified.
	last   atomic.Pointer[Reference]
	others atomic.Pointer[[]*Reference]

	closed atomic.Bool
	// shutdowns counts calls of Shutdown that no provider explains, see countShutdown.
	shutdowns int
}

// Reference is a provider's claim that something stays published.
type Reference struct {
	Handle *Handle
	// Resource is the provider's resource, or the resource of the provider that is expected to start. It
	// is nil while it is unknown.
	Resource *resource.Resource
	// Number identifies the provider, in all publications. It is not 0, except for provisional references.
	Number uint16

	// provisional is true until a provider has started a span.
	provisional bool
	// provider is zero if the provider is not the SDK's. address has the same address, or 0 if that is not
	// known: see addressOf.
	provider weak.Pointer[sdktrace.TracerProvider]
	address  *uintptr
	// counts is true while the provider counts. It may still be true after the provider was collected.
	counts atomic.Bool
}

// isOf reports whether r is a reference of tp that counts. tp is nil for all providers that are not the
// SDK's. A weak pointer is compared instead of an address, because another provider may get the address
// of a collected one.
func (r *Reference) isOf(tp *sdktrace.TracerProvider) bool {
	if tp == nil {
		return r.Counts() && !r.isSDK()
	}
	return r.provider.Value() == tp && r.Counts()
}

// addressOf returns the word in which the runtime keeps the address for a weak pointer to tp, or a zero
// word if that one is not where it is expected. Loading it is ten times as fast as [weak.Pointer.Value].
//
// Sound: the word is in a heap object that belongs to tp, and to which all weak pointers to tp point. The
// runtime stores 0 there before it reuses the memory of tp. So if the word is the address of a provider
// that is alive, the weak pointer points to that provider.
func addressOf(p *weak.Pointer[sdktrace.TracerProvider], tp *sdktrace.TracerProvider) *uintptr {
	if unsafe.Sizeof(*p) == unsafe.Sizeof(uintptr(0)) {
		if word := *(**uintptr)(unsafe.Pointer(p)); atomic.LoadUintptr(word) == uintptr(unsafe.Pointer(tp)) {
			return word
		}
	}
	return new(uintptr)
}

// isSDK reports whether the provider is the SDK's.
func (r *Reference) isSDK() bool { return r.provider != weak.Pointer[sdktrace.TracerProvider]{} }

// Open returns a new handle and applies its provisional reference. r is the resource of the provider to
// come, or nil if that is not known. After an error from Apply there is no handle, and nothing has
// changed.
func (p *Publication) Open(owner any, r *resource.Resource) (*Handle, error) {
	defer Lock()()
	h := newHandle(p, owner, r, false)
	before := slices.Clone(p.references)
	p.insert(&Reference{Handle: h, Resource: r, provisional: true})
	if err := applyAll(p); err != nil {
		p.references = before
		Report(p.Update())
		return nil, err
	}
	if r != nil {
		p.asking = slices.DeleteFunc(p.asking, func(other *Handle) bool { return SameResource(other.resource, r) })
		p.asking = append(p.asking, h)
		p.asking = p.asking[max(0, len(p.asking)-maxAsking):]
	}
	return h, nil
}

// HasReference reports whether the handle has any reference. The caller holds the lock.
func (h *Handle) HasReference() bool {
	return slices.ContainsFunc(h.published.references, func(r *Reference) bool { return r.Handle == h })
}

// Automatic returns a handle for a provider that the program did not set up for otelctx. What the program
// asks for itself takes precedence. The result is nil if nothing is to be published.
func (p *Publication) Automatic() *Handle {
	owner := p.NewOwner()
	if owner == nil {
		return nil
	}
	defer Lock()()
	return newHandle(p, owner, nil, true)
}

func newHandle(p *Publication, owner any, r *resource.Resource, automatic bool) *Handle {
	sequence++
	return &Handle{Owner: owner, published: p, resource: r, automatic: automatic, number: sequence}
}

// SameResource reports whether a and b have the same attributes and schema URL.
func SameResource(a, b *resource.Resource) bool {
	return a.Equal(b) && a.SchemaURL() == b.SchemaURL()
}

// newerThan reports whether h takes precedence over other.
func (h *Handle) newerThan(other *Handle) bool {
	if h.automatic != other.automatic {
		return other.automatic
	}
	return h.number > other.number
}

// insert adds a reference behind all references of the same age, and drops older provisional ones.
func (p *Publication) insert(r *Reference) {
	i := len(p.references)
	for i > 0 && p.references[i-1].Handle.newerThan(r.Handle) {
		i--
	}
	p.references = slices.Insert(p.references, i, r)
	newest := p.references[len(p.references)-1]
	p.drop(func(r *Reference) bool { return r.provisional && newest.Handle.newerThan(r.Handle) })
}

// drop removes the references for which gone returns true.
func (p *Publication) drop(gone func(*Reference) bool) {
	p.references = slices.DeleteFunc(p.references, func(r *Reference) bool {
		if !gone(r) {
			return false
		}
		r.counts.Store(false)
		r.Handle.forget(r)
		if p.Gone != nil && !r.provisional && !isPublished(r.Number) {
			p.Gone(r)
		}
		return true
	})
}

// forget removes a reference from those that the handle sees.
func (h *Handle) forget(r *Reference) {
	rest := []*Reference{}
	if others := h.others.Load(); others != nil {
		rest = slices.DeleteFunc(slices.Clone(*others), func(other *Reference) bool { return other == r })
	}
	if h.last.Load() == r {
		h.last.Store(nil)
		if n := len(rest); n > 0 {
			h.last.Store(rest[n-1])
			rest = rest[:n-1]
		}
	}
	h.others.Store(&rest)
}

// Owners yields the owner of each reference, oldest first. An owner may occur several times. The caller
// holds the lock.
func (p *Publication) Owners(yield func(owner any) bool) {
	for _, r := range p.references {
		if !yield(r.Handle.Owner) {
			return
		}
	}
}

// Newest returns the reference that decides what is published, or nil. The caller holds the lock.
func (p *Publication) Newest() *Reference {
	if len(p.references) == 0 {
		return nil
	}
	return p.references[len(p.references)-1]
}

// Update calls Apply again, after the owner of a handle has changed. The caller holds the lock.
func (p *Publication) Update() error { return p.Apply(p.Newest()) }

// applyAll applies all changes. It returns the error of asked, or of all publications if asked is nil,
// and reports the other errors. Spans are withdrawn before resources, and published after them:
// otherwise they would be advertised in a separate mapping meanwhile.
func applyAll(asked *Publication) error {
	var errs []error
	apply := func(p *Publication) {
		if p.Apply == nil {
			return // the package that publishes is not linked
		}
		if err := p.Update(); asked == nil || p == asked {
			errs = append(errs, err)
		} else {
			Report(err)
		}
	}
	for _, p := range slices.Backward(all[:]) {
		if p.Newest() == nil {
			apply(p)
		}
	}
	for _, p := range all {
		if p.Newest() != nil {
			apply(p)
		}
	}
	return errors.Join(errs...)
}

// Started returns the reference of the provider of s, a span that is being started. It takes one if that
// is the provider's first span. The result is nil if the provider or the handle has been shut down: then
// the span must not be published.
func (h *Handle) Started(s sdktrace.ReadWriteSpan) *Reference {
	tp := sdkspan.Provider(s)
	if r := h.last.Load(); r != nil && tp != nil && atomic.LoadUintptr(r.address) == uintptr(unsafe.Pointer(tp)) && r.Counts() {
		return r
	}
	return h.startedOther(tp, s)
}

//go:noinline
func (h *Handle) startedOther(tp *sdktrace.TracerProvider, s sdktrace.ReadWriteSpan) *Reference {
	if r := h.find(tp); r != nil {
		return r
	}
	return h.Adopt(tp, s.Resource())
}

// StartedUnrecorded is like [Handle.Started], for a span of tp that is not recorded.
func (h *Handle) StartedUnrecorded(tp *sdktrace.TracerProvider) *Reference {
	if r := h.find(tp); r != nil {
		return r
	}
	r, known := sdkspan.Resource(tp)
	if !known {
		return nil // The provider counts from its first recorded span, which knows the resource.
	}
	return h.Adopt(tp, r)
}

// Counts reports whether the provider still counts. A caller that makes a span visible and then checks
// Counts, with a barrier in between, sees that the provider is gone, or else Gone sees the span.
func (r *Reference) Counts() bool { return r.counts.Load() }

// find returns the handle's reference for tp, or nil.
func (h *Handle) find(tp *sdktrace.TracerProvider) *Reference {
	if r := h.last.Load(); r != nil && r.isOf(tp) {
		return r
	}
	if others := h.others.Load(); others != nil {
		for _, r := range *others {
			if r.isOf(tp) {
				return r
			}
		}
	}
	return nil
}

// Adopt takes references for tp, whose resource is r. It returns the handle's, or nil if tp or the handle
// has been shut down.
func (h *Handle) Adopt(tp *sdktrace.TracerProvider, r *resource.Resource) *Reference {
	if h.closed.Load() || isDown(tp) {
		return nil // without the lock, because the processor may stay registered
	}
	defer Lock()()
	if h.closed.Load() || isDown(tp) {
		return nil
	}
	if other := h.find(tp); other != nil {
		return other // another goroutine has been here
	}
	dropGone()
	ref := h.refer(tp, r)
	for _, p := range all {
		for _, asking := range slices.Backward(p.asking) {
			if asking != h && asking.find(tp) == nil && SameResource(asking.resource, r) {
				asking.refer(tp, r)
			}
		}
	}
	Report(applyAll(nil))
	return ref
}

// refer adds a reference for tp. It takes the place of the handle's provisional one.
func (h *Handle) refer(tp *sdktrace.TracerProvider, r *resource.Resource) *Reference {
	ref := &Reference{Handle: h, Resource: r, Number: numberOf(tp), address: new(uintptr)}
	ref.counts.Store(true)
	if tp != nil {
		ref.provider = weak.Make(tp)
		ref.address = addressOf(&ref.provider, tp)
	}
	h.published.drop(func(ref *Reference) bool { return ref.Handle == h && ref.provisional })
	h.published.insert(ref)
	var others []*Reference
	if old := h.others.Load(); old != nil {
		others = slices.Clone(*old)
	}
	if old := h.last.Load(); old != nil {
		others = append(others, old)
	}
	h.others.Store(&others)
	h.last.Store(ref)
	return ref
}

// numberOf returns the Number of tp, which it has already or which no reference has. With 65,535 numbers in
// use, it returns 0.
func numberOf(tp *sdktrace.TracerProvider) uint16 {
	used := map[uint16]bool{}
	for _, p := range all {
		for _, r := range p.references {
			if tp != nil && r.isOf(tp) {
				return r.Number
			}
			used[r.Number] = true
		}
	}
	for range 1<<16 - 1 {
		if numbers++; numbers != 0 && !used[numbers] {
			return numbers
		}
	}
	return 0
}

// isPublished reports whether spans of the provider with this number are published.
func isPublished(number uint16) bool {
	for _, p := range []*Publication{&Spans, &Profiling} {
		if slices.ContainsFunc(p.references, func(r *Reference) bool { return r.Number == number && r.Counts() }) {
			return true
		}
	}
	return false
}

// isShutdown is sdkspan.IsShutdown, except in tests.
var isShutdown = sdkspan.IsShutdown

func isDown(tp *sdktrace.TracerProvider) bool {
	if tp == nil {
		return false
	}
	down, _ := isShutdown(tp)
	return down
}

// dropGone drops the references of providers that have been shut down or collected. It returns the
// handles of providers that have been shut down.
func dropGone() (down []*Handle) {
	for _, p := range all {
		p.drop(func(r *Reference) bool {
			if r.provisional || !r.isSDK() {
				return false
			}
			tp := r.provider.Value()
			if tp != nil && !isDown(tp) {
				return false
			}
			if tp != nil {
				down = append(down, r.Handle)
			}
			return true
		})
	}
	return down
}

// Shutdown drops the references of all providers that are gone, and the handle's provisional one. The
// caller is the processor's Shutdown, and does not know which provider has called it. The result joins
// the errors from withdrawing and publishing.
func (h *Handle) Shutdown() error {
	defer Lock()()
	if down := dropGone(); !slices.Contains(down, h) && !h.countShutdown() && !calledByProvider() {
		// UnregisterSpanProcessor or the program itself has shut the processor down. The provider may be
		// alive, but its spans no longer reach the processor.
		h.closed.Store(true)
		h.published.asking = slices.DeleteFunc(h.published.asking, func(other *Handle) bool { return other == h })
	}
	h.published.drop(func(r *Reference) bool { return r.Handle == h && (r.provisional || h.closed.Load()) })
	return applyAll(nil)
}

// countShutdown is for providers of which it is not known whether they have been shut down. When there
// have been as many calls of Shutdown as there are such providers, it drops their references. A provider
// that is still alive takes a new reference with its next span. countShutdown returns false if there is
// no such provider.
func (h *Handle) countShutdown() bool {
	unknown := func(r *Reference) bool {
		if r.Handle != h || r.provisional {
			return false
		}
		tp := r.provider.Value()
		if tp == nil {
			return true
		}
		_, known := isShutdown(tp)
		return !known
	}
	n := 0
	for _, r := range h.published.references {
		if unknown(r) {
			n++
		}
	}
	if h.shutdowns++; h.shutdowns >= n {
		h.shutdowns = 0
		h.published.drop(unknown)
	}
	return n > 0
}

// sdkShutdown is the name of the method that calls a processor's Shutdown when a provider is shut down.
const sdkShutdown = "go.opentelemetry.io/otel/sdk/trace.(*TracerProvider).Shutdown"

// calledByProvider reports whether the caller runs because a provider is being shut down.
func calledByProvider() bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		f, more := frames.Next()
		if f.Function == sdkShutdown || strings.HasPrefix(f.Function, sdkShutdown+".") {
			return true
		}
		if !more {
			return false
		}
	}
}
