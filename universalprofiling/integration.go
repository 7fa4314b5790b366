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

// ErrAlreadyIntegrated says that this process has an Integration already.
var ErrAlreadyIntegrated = errors.New("the integration is on already")

// Integration shows spans to profilers and takes what they say of them. [New] makes one.
// It is a span processor that may be registered with several TracerProviders, and is
// safe for concurrent use. A nil Integration, and one that is disabled, does nothing.
type Integration struct {
	settings settings
	runtime  *goruntime.Runtime
	table    *cells.Table
	roots    roots
	guests   guests
	library  *apmlib.Library
	records  *apmlib.Records
	socket   *profilersocket.Socket
	received chan struct{} // closed when the socket is not read any more

	// service is of whom the process storage is: nil until the first span if that is
	// to tell.
	service      atomic.Pointer[resource.Resource]
	correlations correlations
	warned       warnings

	stopped  atomic.Bool
	shutdown sync.Once
	// shutdownErr is guarded by shutdown.
	shutdownErr error
	// users is how many providers share it; building guards it.
	users int
}

var _ sdktrace.SpanProcessor = (*Integration)(nil)

// active is the Integration of this process, or nil. There is one because there is one
// library.
var active atomic.Pointer[Integration]

// latest is the Integration that came up last, also after its Shutdown: spans may still be on
// their way to an exporter.
var latest atomic.Pointer[Integration]

// asked is whether anybody has asked for an Integration.
var asked atomic.Bool

// Active returns the Integration of the process, such as the one of [WithIntegration], for
// its [Integration.Stats]. It is nil while there is none, and a nil Integration counts nothing.
func Active() *Integration { return active.Load() }

// building is held while an Integration comes up or goes down.
var building sync.Mutex

// New returns an Integration, for callers that want its errors; [WithIntegration] registers one.
// The error wraps [ErrAlreadyIntegrated], or [errors.ErrUnsupported] on other platforms.
// Else it says what is not known of the Go runtime, or what has failed in which
// directories. After an error nothing is left behind. Being disabled is no error.
func New(opts ...Option) (*Integration, error) {
	return newWith(newSettings(opts))
}

func newWith(s settings) (*Integration, error) {
	asked.Store(true)
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

// WithIntegration is [sdktrace.WithSpanProcessor] with [ForProvider].
func WithIntegration(opts ...Option) sdktrace.TracerProviderOption {
	return sdktrace.WithSpanProcessor(ForProvider(opts...))
}

// ForProvider returns a [New] Integration for one TracerProvider, which shuts it down; it can
// be registered with a provider that exists already. An error goes to [otel.Handle], and the
// provider is none the worse for it. Where the process has an Integration already, the provider shares that one until
// the Shutdown of the last provider that does. Then opts do not count, which is reported if
// they ask for something else.
//
// Without [NewExporter] spans are shown, but nothing comes back. If a profiler sends stack
// traces all the same, that is reported.
func ForProvider(opts ...Option) *Integration {
	s := newSettings(opts)
	for {
		i, err := newWith(s)
		if errors.Is(err, ErrAlreadyIntegrated) {
			if i, err = share(s); i == nil {
				continue // It has been shut down meanwhile.
			}
		}
		if err != nil {
			otel.Handle(err)
		}
		return i
	}
}

// share returns the Integration of this process for one more provider, with an error if s
// asks for another one. It returns nil if the Integration has been shut down, or is about to be.
func share(s settings) (*Integration, error) {
	building.Lock()
	defer building.Unlock()
	i := active.Load()
	if i == nil || i.users <= 0 {
		return nil, nil //nolint:nilnil // It has gone, which is no error.
	}
	i.users++
	of := i.settings
	if s.mode != of.mode || s.socketDir != of.socketDir || s.bufferSize != of.bufferSize || s.maxDelay != of.maxDelay ||
		s.resource != nil && (of.resource == nil || !s.resource.Equal(of.resource)) {
		return i, errors.New("universal profiling: the integration is shared with another provider: the options of this one do not count")
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
	if i.table, err = cells.New(cells.Options{Spare: i.isShown, Evict: i.evict, Heap: true}); err != nil {
		return nil, err
	}
	i.correlations.start(i.table, s)
	// A profiler that reads the storage has to find the socket there.
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

// socketName is the name of the socket's file. It is one for the life of the process: a
// profiler that has read it goes on sending there when another Integration follows.
var socketName = sync.OnceValue(func() string {
	return fmt.Sprintf("%s%d-%s.sock", socketPrefix, os.Getpid(), rand.Text()[:8])
})

const socketPrefix = "otelctx-"

// socketDirs returns the directories for the socket in the order in which they are
// tried.
func socketDirs(chosen string) []string {
	return distinct(chosen, os.Getenv("XDG_RUNTIME_DIR"), os.TempDir())
}

// libraryDirs returns the directories for the library, of which one has to allow code to
// be mapped from it.
func libraryDirs(chosen string) []string {
	return distinct(chosen, os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/dev/shm", "/var/tmp")
}

// distinct returns dirs without empty ones and repetitions.
func distinct(dirs ...string) (all []string) {
	for _, dir := range dirs {
		if dir != "" && !slices.Contains(all, filepath.Clean(dir)) {
			all = append(all, filepath.Clean(dir))
		}
	}
	return all
}

// listen makes the socket in the first directory that serves. That it is not the one
// that was chosen is reported.
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

// storage returns the process storage.
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
		// The older name is the one that services in the field have.
		ServiceEnvironment: value("deployment.environment.name", "deployment.environment"),
		SocketPath:         i.socket.Path(),
	}.Encode()
}

// off reports whether spans are not to be shown.
func (i *Integration) off() bool { return i == nil || i.records == nil || i.stopped.Load() }

// OnStart shows the span on the calling goroutine's thread. ctx is the context that the
// span was started with.
func (i *Integration) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if i.off() || s == nil {
		return
	}
	if i.service.Load() == nil {
		i.serve(s.Resource())
	}
	var n cells.Span
	var child bool
	n.Key, n.TraceFlags, child, n.StartUnixNS = sdkspan.Started(s)
	if n.SpanID == 0 {
		return // It is over: a processor before this one has ended it.
	}
	self := i.runtime.Goroutine()
	goid := self.Goid
	n.G = uintptr(self.G)
	at, known := i.position(goid)
	if i.table.Is(at, n.Key) {
		return // The provider has this processor twice.
	}
	n.Goid, n.LocalRootSpanID = goid, n.SpanID
	parent := i.parent(ctx, s, &n, child, at)
	if !known && i.table.IsOf(parent, goid) {
		at = parent
	}
	i.table.SetLineage(&n, parent, wire.Position(at))
	p := goruntime.Pin()
	r := i.table.Reserve(p)
	if r == 0 {
		goruntime.Unpin()
		i.goTo(0, goid) // not known is better than wrong
		return
	}
	i.table.Commit(p, r, &n)
	goruntime.Unpin()
	i.show(r, &n, goid)
	// Shutdown says so first and then ends all live spans: one of the two sees the other.
	if i.stopped.Load() && i.table.End(r) {
		i.clear(r)
	}
}

// parent returns the nearest live span of the context that a span is started with, or 0. It gives
// the span the local root of its parent, if that is local. likely is a guess at the parent.
func (i *Integration) parent(ctx context.Context, s sdktrace.ReadWriteSpan, n *cells.Span, child bool, likely cells.Ref) cells.Ref {
	k, remote := sdkspan.Parent(s)
	if !child { // By the option trace.WithNewRoot its context may have a span all the same.
		local := false
		if k, local = sdkspan.Local(ctx); !local {
			return 0
		}
	} else if remote || k.TraceIDHigh != n.TraceIDHigh || k.TraceIDLow != n.TraceIDLow {
		return 0 // A remote parent is another process's, also where its id is known here.
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

// rootOfEnded returns the local root of a span that has ended and has this key. The span itself may
// be it, its live parent knows it, or it is remembered, which takes longest to find out. Otherwise it
// returns 0: profilers do not report samples without a transaction, and a wrong one is worse than none.
func (i *Integration) rootOfEnded(s sdktrace.ReadOnlySpan, parent cells.Ref, k sdkspan.Key) uint64 {
	if s != nil && isTransaction(s) {
		return k.SpanID
	}
	if root, _ := i.table.LocalRoot(parent); root != 0 {
		return root
	}
	return i.roots.find(k)
}

// sampled is the trace flag that says so.
const sampled = uint8(trace.FlagsSampled)

// stored returns an id, read as a big-endian number, as a word whose bytes in memory are
// the id's.
func stored(id uint64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], id)
	return binary.NativeEndian.Uint64(b[:])
}

// serve takes the resource of the first span for the service's, if none was given.
func (i *Integration) serve(r *resource.Resource) {
	if i.service.CompareAndSwap(nil, r) {
		i.library.SetStorage(i.storage())
	}
}

// nearest returns the live span that a goroutine is in which has shown a span, or 0.
func (i *Integration) nearest(ref cells.Ref, goid uint64) cells.Ref {
	now, _ := i.table.Nearest(wire.Position(ref), goid)
	return now.Ref()
}

// position returns the live span that a goroutine is in, or 0, and whether that is known.
func (i *Integration) position(goid uint64) (at cells.Ref, known bool) {
	ref, known := i.records.Shown(goid)
	return i.nearest(cells.Ref(ref), goid), known
}

// show shows a live span on the calling goroutine's thread, or if the span has ended meanwhile
// the nearest live one around it. It reports whether it could.
func (i *Integration) show(ref cells.Ref, n *cells.Span, goid uint64) bool {
	// Fields are assigned one by one: a struct that is made somewhere else and copied
	// at once would hold up the processor.
	var s apmlib.Span
	s.TraceIDHigh, s.TraceIDLow = stored(n.TraceIDHigh), stored(n.TraceIDLow)
	s.SpanID, s.TransactionID, s.TraceFlags = stored(n.SpanID), stored(n.LocalRootSpanID), n.TraceFlags
	s.Ref = uint64(ref)
	s.Show()
	if !i.records.Store(&s) {
		if err := i.records.Err(); err != nil {
			i.warned.once("spans are not shown any more: %w", err)
		}
		return false
	}
	// Whoever ends a span looks at the record after that. So either they clear this record,
	// or the span is over here.
	return i.table.Live(ref) || i.goTo(i.nearest(ref, goid), goid)
}

// goTo is show for a span that was started before, or with a ref of 0 for none.
func (i *Integration) goTo(ref cells.Ref, goid uint64) bool {
	for ; ref != 0; ref = i.nearest(ref, goid) {
		var n cells.Span
		if i.table.Load(ref, &n) {
			return i.show(ref, &n, goid)
		}
	}
	return i.records.Store(nil)
}

// isShown reports whether the goroutine that has started a span still runs and has shown it last.
func (i *Integration) isShown(ref cells.Ref, goid uint64, g uintptr) bool {
	shown, _ := i.records.Shown(goid)
	return cells.Ref(shown) == ref && i.runtime.Is(g, goid)
}

// clear clears the records that show a span which is over. It may be called while pinned.
func (i *Integration) clear(ref cells.Ref) {
	var n cells.Span
	i.table.Load(ref, &n)
	if i.guests.any(ref) {
		i.records.ClearAll(stored(n.SpanID))
	} else {
		i.records.Clear(n.Goid, stored(n.SpanID))
	}
}

// evict ends a span to make room for another one, and clears the records that show it. It reports
// whether it did, or somebody else was first. It may be called while pinned.
func (i *Integration) evict(ref cells.Ref) bool {
	if !i.table.End(ref) {
		return false
	}
	i.correlations.counters.evicted.Add(1)
	i.clear(ref)
	return true
}

// OnEnd makes the span be over. If the calling goroutine is in it, it goes back to the
// nearest live span around it. If another goroutine is in it, that one's record is
// cleared, and it goes back when it starts or ends its next span. No other thread may
// store to its record.
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
			// It was evicted, or never shown.
			if n := i.correlations.counters.evicted.Load(); n > 0 {
				i.warned.once("more than %d spans are live: the oldest are not shown and have no stack traces", cells.Capacity)
			}
			i.goBack(cells.Ref(shown), goid)
			return
		}
	}
	// Before it is over: correlations and children may come at any time.
	switch root, _ := i.table.LocalRoot(ref); root {
	case 0:
	case k.SpanID:
		if traceFlags&sampled != 0 && i.correlations.on() {
			i.correlations.end(k)
		}
	default:
		i.roots.add(k, root)
	}
	at, own := wire.Position(shown), i.table.IsOf(ref, goid)
	if i.guests.any(cells.Ref(shown)) {
		at = wire.AttachedTo(cells.Ref(shown))
	}
	if !i.table.End(ref) {
		i.goBack(cells.Ref(shown), goid)
		return // Somebody else did.
	}
	to, in := i.table.Leave(at, ref, goid)
	if !in || !i.goTo(to.Ref(), goid) || i.guests.any(ref) {
		i.clear(ref)
	}
	if !in {
		i.goBack(cells.Ref(shown), goid)
	}
	p := goruntime.Pin()
	again := in && own && !at.Attached() && i.table.FreeWarm(p, ref)
	goruntime.Unpin()
	if !again {
		// The goroutine that has started it may still need what is around it.
		i.table.Free(ref)
	}
}

// goBack shows the nearest live span around the one that the calling goroutine has shown last, if
// that is over. After Shutdown it does nothing: the record may be in use by a later Integration.
func (i *Integration) goBack(shown cells.Ref, goid uint64) {
	if shown != 0 && !i.table.Live(shown) && !i.stopped.Load() {
		i.goTo(i.nearest(shown, goid), goid)
	}
}

// ForceFlush exports what the exporters keep back, with what the profiler has sent until
// then, unless ctx is done before. It also has them export at once what ended before.
func (i *Integration) ForceFlush(ctx context.Context) error {
	if i == nil || i.records == nil {
		return nil
	}
	i.correlations.flushed.Store(now())
	return i.correlations.release(ctx)
}

// Shutdown takes everything back: the spans that are still shown, the process storage and
// the socket. It exports what the exporters keep back, with what the profiler has sent
// until then, unless ctx is done before. Spans may start and end meanwhile and afterwards;
// they are not shown, and not kept back. Later calls return what the first one did.
//
// Where providers share the Integration by [WithIntegration], all calls but the last one do
// nothing.
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
		// Before the socket is: what is in it counts, also for spans that come to an
		// exporter later.
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

// warnings are the texts of those that have been given.
type warnings struct {
	mu    sync.Mutex
	given map[string]bool
}

// maxWarnings bounds them: texts may have what a profiler says.
const maxWarnings = 64

// once reports an error, the first time for each text. It does not wait for the handler, which
// may itself trace and export, and so wait for the socket to be drained.
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
