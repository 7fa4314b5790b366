// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/apmlib"
	"github.com/otelctx/otelctx/internal/bubble"
	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/profilersocket"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/wire"
)

// ErrAlreadyIntegrated means that this process already has an Integration.
var ErrAlreadyIntegrated = errors.New("this process already has an integration")

// Integration publishes spans to profilers and receives messages from them, see [New]. It is a span
// processor that may be registered with several TracerProviders. It is safe for concurrent use. A
// nil or disabled Integration does nothing.
type Integration struct {
	settings     settings
	runtime      *goruntime.Runtime
	table        *cells.Table
	roots        roots
	attachCounts attachCounts
	library      *apmlib.Library
	records      *apmlib.Records
	socket       *profilersocket.Socket
	received     chan struct{} // closed when the socket is no longer read

	// service is the resource in the process storage. Without WithResource, it is nil until the
	// first span starts.
	service      atomic.Pointer[resource.Resource]
	correlations correlations
	warned       warnings

	stopped  atomic.Bool
	shutdown sync.Once
	// shutdownErr is guarded by shutdown.
	shutdownErr error
	// users is the number of providers that share the Integration, guarded by building.
	users int
}

var _ sdktrace.SpanProcessor = (*Integration)(nil)

// active is the Integration of this process, or nil. There can be only one, because they would all
// publish through the same library.
var active atomic.Pointer[Integration]

// latest is the Integration that was created last. It stays set after Shutdown, because spans may
// still be on their way to an exporter.
var latest atomic.Pointer[Integration]

// requested is true once an Integration has been requested, even if it is disabled or could not be
// created.
var requested atomic.Bool

// Current returns the Integration of this process, for example the one created by
// [WithIntegration], or nil if there is none. Use it to call [Integration.Stats], which returns
// zero counts for a nil Integration.
func Current() *Integration { return active.Load() }

// building is held while an Integration starts or shuts down.
var building sync.Mutex

// New creates an Integration. Callers must register it and handle the error; [WithIntegration] does
// both. The error wraps [ErrAlreadyIntegrated], or [errors.ErrUnsupported] on unsupported
// platforms. Otherwise it says why the Go runtime is not supported, or what failed in which
// directories. New cleans up after an error. If the integration is disabled, New returns an
// Integration that does nothing.
func New(opts ...Option) (*Integration, error) {
	return newWith(newSettings(opts))
}

func newWith(s settings) (*Integration, error) {
	requested.Store(true)
	if s.mode == Disabled {
		return new(Integration), nil
	}
	var i *Integration
	var err error
	bubble.Outside(func() { i, err = newIntegration(s) })
	if err != nil {
		return nil, fmt.Errorf("universal profiling: %w", err)
	}
	return i, nil
}

// WithIntegration registers an Integration with a TracerProvider. It is short for
// [sdktrace.WithSpanProcessor] with the result of [ForProvider].
func WithIntegration(opts ...Option) sdktrace.TracerProviderOption {
	return sdktrace.WithSpanProcessor(ForProvider(opts...))
}

// ForProvider returns an Integration to register with one TracerProvider, which also shuts it down:
//
//	tp.RegisterSpanProcessor(universalprofiling.ForProvider())
//
// If the process already has an Integration, the provider shares it, and the Integration stops when
// the last provider that shares it is shut down. In this case opts are ignored, which is reported
// if they differ. Otherwise ForProvider creates an Integration, like [New]. Errors go to
// [otel.Handle], and the provider works as usual.
//
// Without [NewExporter], spans are published, but stack traces are not exported. If a profiler sends
// stack traces, that is reported.
func ForProvider(opts ...Option) *Integration {
	s := newSettings(opts)
	for {
		i, err := newWith(s)
		if errors.Is(err, ErrAlreadyIntegrated) {
			if i, err = share(s); i == nil {
				continue // it has been shut down in the meantime
			}
		}
		if err != nil {
			otel.Handle(err)
		}
		return i
	}
}

// share returns the Integration of this process for one more provider, or nil if it has been shut
// down. The error is not nil if s differs from the settings of the Integration.
func share(s settings) (*Integration, error) {
	building.Lock()
	defer building.Unlock()
	i := active.Load()
	if i == nil || i.users <= 0 {
		return nil, nil //nolint:nilnil // the caller tries again
	}
	i.users++
	shared := i.settings
	if s.mode != shared.mode || s.socketDir != shared.socketDir || s.bufferSize != shared.bufferSize || s.maxDelay != shared.maxDelay ||
		s.resource != nil && (shared.resource == nil || !s.resource.Equal(shared.resource)) {
		return i, errors.New("universal profiling: the integration is shared with another provider: the options of this one are ignored")
	}
	return i, nil
}

func newIntegration(s settings) (_ *Integration, err error) {
	building.Lock()
	defer building.Unlock()
	if active.Load() != nil {
		return nil, ErrAlreadyIntegrated
	}
	if !apmlib.Supported {
		return nil, errors.ErrUnsupported
	}
	i := &Integration{
		settings: s, runtime: s.runtime, received: make(chan struct{}), users: 1, roots: newRoots(),
	}
	if i.table, err = cells.New(cells.Options{Spare: i.isPublished, Evict: i.evict, Heap: true}); err != nil {
		return nil, err
	}
	i.correlations.start(i.table, s)
	// Create the socket first, because the process storage contains its path.
	if i.socket, err = listen(socketDirs(s.socketDir)); err != nil {
		return nil, err
	}
	if i.library, err = apmlib.Install(libraryDirs(s.socketDir), i.storage(), s.runtime); err != nil {
		return nil, errors.Join(err, i.socket.Close())
	}
	i.records = i.library.Records()
	if s.resource != nil {
		i.service.Store(s.resource)
	}
	go i.receive()
	active.Store(i)
	latest.Store(i)
	return i, nil
}

// socketName returns the file name of the socket. It never changes during the life of the process:
// a profiler that has read the name continues to send there, even if a new Integration is created.
var socketName = sync.OnceValue(func() string {
	return fmt.Sprintf("%s%d-%s.sock", socketPrefix, os.Getpid(), rand.Text()[:8])
})

const socketPrefix = "otelctx-"

// socketDirs returns the directories to try for the socket, in order.
func socketDirs(chosen string) []string {
	return distinct(chosen, os.Getenv("XDG_RUNTIME_DIR"), os.TempDir())
}

// libraryDirs returns the directories to try for the library, in order. The library needs a
// directory from which code can be mapped.
func libraryDirs(chosen string) []string {
	return distinct(chosen, os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/dev/shm", "/var/tmp")
}

// distinct returns dirs without empty strings and duplicates.
func distinct(dirs ...string) (all []string) {
	for _, dir := range dirs {
		if dir != "" && !slices.Contains(all, filepath.Clean(dir)) {
			all = append(all, filepath.Clean(dir))
		}
	}
	return all
}

// listen creates the socket in the first suitable directory, and reports why the directories before
// it are not suitable.
func listen(dirs []string) (*profilersocket.Socket, error) {
	var errs []error
	for _, dir := range dirs {
		s, err := profilersocket.Listen(dir, socketName())
		if err == nil {
			profilersocket.Sweep(dir, socketPrefix)
			if len(errs) > 0 {
				otel.Handle(fmt.Errorf("universal profiling: %w; the socket is %s", errors.Join(errs...), s.Path()))
			}
			return s, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no directory for the socket: %w", errors.Join(errs...))
}

// storage returns the encoded process storage: the name and environment of the service, and the
// path of the socket.
func (i *Integration) storage() []byte {
	r := i.settings.resource
	if first := i.service.Load(); first != nil {
		r = first
	}
	if r == nil {
		r = resource.Default()
	}
	value := func(keys ...string) string {
		for _, key := range keys {
			for _, kv := range r.Attributes() {
				if string(kv.Key) == key {
					return kv.Value.String()
				}
			}
		}
		return ""
	}
	return wire.ProfilingProcessStorage{
		ServiceName: value("service.name"),
		// Many services still use the older key.
		ServiceEnvironment: value("deployment.environment.name", "deployment.environment"),
		SocketPath:         i.socket.Path(),
	}.Encode()
}

// inactive reports whether the Integration publishes no spans: it is nil, disabled or shut down.
func (i *Integration) inactive() bool { return i == nil || i.records == nil || i.stopped.Load() }

// OnStart publishes the span on the calling goroutine's thread. ctx is the context passed to Start.
func (i *Integration) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if i.inactive() || s == nil {
		return
	}
	if i.service.Load() == nil {
		i.adoptResource(s.Resource())
	}
	var n cells.Span
	var child bool
	n.Key, n.TraceFlags, child, n.StartUnixNS = sdkspan.Started(s)
	if n.SpanID == 0 {
		return // an earlier processor has ended the span
	}
	self := i.runtime.Goroutine()
	goid := self.Goid
	n.G = uintptr(self.G)
	current, known := i.position(goid)
	if i.table.Is(current, n.Key) {
		return // the processor is registered twice
	}
	n.Goid, n.LocalRootSpanID = goid, n.SpanID
	parent := i.parent(ctx, s, &n, child, current)
	if !known && i.table.IsOf(parent, goid) {
		current = parent
	}
	i.table.SetLineage(&n, parent, wire.Position(current))
	p := goruntime.Pin()
	r := i.table.Reserve(p)
	if r == 0 {
		goruntime.Unpin()
		i.publishRef(0, goid) // otherwise the thread would keep publishing its previous span
		return
	}
	i.table.Commit(p, r, &n)
	goruntime.Unpin()
	i.publish(r, &n, goid)
	// Shutdown first sets stopped and then ends all live spans. So either Shutdown sees this span
	// or OnStart sees stopped.
	if i.stopped.Load() && i.table.End(r) {
		i.clear(r)
	}
}

// parent returns the span of ctx, in which s starts. If that has ended, it returns the parent of
// that span, or 0 if that is not live either. If s has a local parent, the method sets the local
// root in n. likely is a guess of the parent, which saves a lookup.
func (i *Integration) parent(ctx context.Context, s sdktrace.ReadWriteSpan, n *cells.Span, child bool, likely cells.Ref) cells.Ref {
	k, remote := sdkspan.Parent(s)
	if !child { // with trace.WithNewRoot, ctx may have a span even though s has no parent
		var local bool
		if k, local = sdkspan.Local(ctx); !local {
			return 0
		}
	} else if remote || k.TraceIDHigh != n.TraceIDHigh || k.TraceIDLow != n.TraceIDLow {
		return 0 // a remote parent is in another process, even if a span with its id exists here
	}
	parent := likely
	if !i.table.Is(likely, k) {
		parent = i.table.Find(k)
	}
	if child {
		n.LocalRootSpanID, _ = i.table.LocalRoot(parent)
	}
	if parent != 0 {
		return parent
	}
	grandparent := cells.Ref(0)
	ended, _ := trace.SpanFromContext(ctx).(sdktrace.ReadOnlySpan)
	if ended != nil && !ended.Parent().IsRemote() {
		grandparent = i.table.Find(sdkspan.Of(ended.Parent()))
	}
	if child {
		n.LocalRootSpanID = i.rootOfEnded(ended, grandparent, k)
	}
	return grandparent
}

// rootOfEnded returns the local root of s, a span with key k that has ended. It is the span itself,
// the local root of its live parent, or the local root remembered in i.roots, which is the slowest
// lookup. If the local root is unknown, rootOfEnded returns 0: profilers ignore samples without a
// transaction, and no transaction is better than a wrong one.
func (i *Integration) rootOfEnded(s sdktrace.ReadOnlySpan, parent cells.Ref, k sdkspan.Key) uint64 {
	if s != nil && isTransaction(s) {
		return k.SpanID
	}
	if root, _ := i.table.LocalRoot(parent); root != 0 {
		return root
	}
	return i.roots.find(k)
}

// sampled is the trace flag of sampled spans.
const sampled = uint8(trace.FlagsSampled)

// memoryOrder converts an id, a big-endian number, to the number that is stored in memory as the
// bytes of the id.
func memoryOrder(id uint64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], id)
	return binary.NativeEndian.Uint64(b[:])
}

// adoptResource stores the first span's resource in the process storage, unless another one is
// there.
func (i *Integration) adoptResource(r *resource.Resource) {
	if i.service.CompareAndSwap(nil, r) {
		i.library.SetStorage(i.storage())
	}
}

// nearest returns ref if its span is live, otherwise its nearest live ancestor, or 0 if there is
// none.
func (i *Integration) nearest(ref cells.Ref, goid uint64) cells.Ref {
	position, _ := i.table.Nearest(wire.Position(ref), goid)
	return position.Ref()
}

// position returns the live span that a goroutine is in, or 0, and whether the position is known.
func (i *Integration) position(goid uint64) (current cells.Ref, known bool) {
	ref, known := i.records.Shown(goid)
	return i.nearest(cells.Ref(ref), goid), known
}

// publish publishes a live span on the calling goroutine's thread. If the span has ended in the
// meantime, it publishes the nearest live ancestor. It reports whether it succeeded.
func (i *Integration) publish(ref cells.Ref, n *cells.Span, goid uint64) bool {
	// Assign the fields one by one: building a struct elsewhere and copying it at once would stall
	// the CPU.
	var s apmlib.Span
	s.TraceIDHigh, s.TraceIDLow = memoryOrder(n.TraceIDHigh), memoryOrder(n.TraceIDLow)
	s.SpanID, s.TransactionID, s.TraceFlags = memoryOrder(n.SpanID), memoryOrder(n.LocalRootSpanID), n.TraceFlags
	s.Ref = uint64(ref)
	s.Show()
	if !i.records.Store(&s) {
		if err := i.records.Err(); err != nil {
			i.warned.once("spans are no longer published: %w", err)
		}
		return false
	}
	// A goroutine that ends the span reads the record afterwards. So either that goroutine clears
	// this record, or the check below finds that the span has ended.
	return i.table.Live(ref) || i.publishRef(i.nearest(ref, goid), goid)
}

// publishRef is publish for a span in the table. If ref is 0, it publishes no span.
func (i *Integration) publishRef(ref cells.Ref, goid uint64) bool {
	for ; ref != 0; ref = i.nearest(ref, goid) {
		var n cells.Span
		if i.table.Load(ref, &n) {
			return i.publish(ref, &n, goid)
		}
	}
	return i.records.Store(nil)
}

// isPublished reports whether the goroutine that started a span still exists and published that
// span last.
func (i *Integration) isPublished(ref cells.Ref, goid uint64, g uintptr) bool {
	shown, _ := i.records.Shown(goid)
	return cells.Ref(shown) == ref && i.runtime.Is(g, goid)
}

// clear clears all records that contain an ended span. It may be called while pinned.
func (i *Integration) clear(ref cells.Ref) {
	var n cells.Span
	i.table.Load(ref, &n)
	if i.attachCounts.any(ref) {
		i.records.ClearAll(memoryOrder(n.SpanID))
	} else {
		i.records.Clear(n.Goid, memoryOrder(n.SpanID))
	}
}

// evict ends a span to make room for another one, and clears the records that contain the span. It
// returns false if the span had already ended. It may be called while pinned.
func (i *Integration) evict(ref cells.Ref) bool {
	if !i.table.End(ref) {
		return false
	}
	i.correlations.counters.evicted.Add(1)
	i.clear(ref)
	return true
}

// OnEnd ends the span. If the calling goroutine is in it, the nearest live ancestor is published
// instead. If another goroutine is in it, the record of that goroutine's thread is cleared. Only
// that thread may publish the ancestor, so this happens when the goroutine starts or ends its next
// span.
func (i *Integration) OnEnd(s sdktrace.ReadOnlySpan) {
	if i == nil || i.records == nil || s == nil {
		return
	}
	k, traceFlags, _ := sdkspan.Ended(s)
	goid := i.runtime.Goroutine().Goid
	shown, _ := i.records.Shown(goid)
	ref := cells.Ref(shown)
	if !i.table.Is(ref, k) {
		if ref = i.table.Find(k); ref == 0 {
			// The span was evicted, or was never published.
			if n := i.correlations.counters.evicted.Load(); n > 0 {
				i.warned.once("more than %d spans are live: the oldest are not published and have no stack traces", cells.Capacity)
			}
			i.dropEnded(cells.Ref(shown), goid)
			return
		}
	}
	// Store the end and the local root before the span ends in the table, because correlations and
	// child spans may arrive at any time.
	switch root, _ := i.table.LocalRoot(ref); root {
	case 0:
	case k.SpanID:
		if traceFlags&sampled != 0 && i.correlations.enabled() {
			i.correlations.end(k)
		}
	default:
		i.roots.add(k, root)
	}
	position, own := wire.Position(shown), i.table.IsOf(ref, goid)
	if i.attachCounts.any(cells.Ref(shown)) {
		position = wire.AttachedTo(cells.Ref(shown))
	}
	if !i.table.End(ref) {
		i.dropEnded(cells.Ref(shown), goid)
		return // another goroutine has ended it
	}
	next, inside := i.table.Leave(position, ref, goid)
	if !inside || !i.publishRef(next.Ref(), goid) || i.attachCounts.any(ref) {
		i.clear(ref)
	}
	if !inside {
		i.dropEnded(cells.Ref(shown), goid)
	}
	p := goruntime.Pin()
	// The next span on this P may reuse the cell at once if no goroutine needs the lineage. This is
	// so if the goroutine that ends the span has started it, and is in the span itself instead of
	// in an inner one that may outlive it.
	reused := inside && own && position == wire.Position(ref) && i.table.FreeWarm(p, ref)
	goruntime.Unpin()
	if !reused {
		i.table.Free(ref)
	}
}

// dropEnded publishes the nearest live ancestor if the span that the calling goroutine published
// last has ended. After Shutdown it does nothing, because a later Integration may be using the
// record.
func (i *Integration) dropEnded(shown cells.Ref, goid uint64) {
	if shown != 0 && !i.table.Live(shown) && !i.stopped.Load() {
		i.publishRef(i.nearest(shown, goid), goid)
	}
}

// ForceFlush exports all waiting transactions, with the stack traces that the profiler has sent by
// then. It stops when ctx is done. Transactions that have ended but have not reached an exporter
// yet will be exported without a delay.
func (i *Integration) ForceFlush(ctx context.Context) error {
	if i == nil || i.records == nil {
		return nil
	}
	i.correlations.flushed.Store(now())
	return i.correlations.release(ctx)
}

// Shutdown unpublishes all spans and the process storage, and removes the socket. It exports all
// waiting transactions, with the stack traces that the profiler has sent by then, but stops
// exporting when ctx is done. Spans may start and end during and after Shutdown. They are neither
// published nor delayed. Later calls return the result of the first.
//
// If several providers share the Integration through [ForProvider], only the last Shutdown has an
// effect.
func (i *Integration) Shutdown(ctx context.Context) error {
	if i == nil || i.records == nil {
		return nil
	}
	building.Lock()
	i.users--
	shared := i.users > 0
	building.Unlock()
	if shared {
		return nil
	}
	i.shutdown.Do(func() {
		building.Lock()
		defer building.Unlock()
		i.stopped.Store(true)
		i.correlations.flushed.Store(^uint64(0))
		i.library.Withdraw()
		// Drain reads the messages that are already in the socket. They are also used for spans
		// that reach an exporter later.
		err := errors.Join(i.socket.Drain(ctx), i.correlations.release(ctx), i.socket.Stop())
		<-i.received
		i.table.All(func(r cells.Ref) {
			if i.table.End(r) {
				i.clear(r)
			}
		})
		i.shutdownErr = errors.Join(err, i.socket.Close(), i.table.Close())
		active.CompareAndSwap(i, nil)
	})
	return i.shutdownErr
}

// warnings remembers which warnings have been reported.
type warnings struct {
	mu    sync.Mutex
	given map[string]bool
}

// maxWarnings limits the number of warnings, because their texts may contain data from a profiler.
const maxWarnings = 64

// once reports an error unless an error with the same text, or maxWarnings others, have been
// reported before. It does not wait for the error handler: the handler may start and export spans,
// and thus wait until the socket is drained.
func (w *warnings) once(format string, args ...any) {
	err := fmt.Errorf("universal profiling: "+format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.given[err.Error()] || len(w.given) >= maxWarnings {
		return
	}
	if w.given == nil {
		w.given = map[string]bool{}
	}
	w.given[err.Error()] = true
	go otel.Handle(err)
}
