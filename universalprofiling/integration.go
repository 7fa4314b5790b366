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
	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/profilersocket"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// integration is what an [Integration] has while spans are published.
type integration struct {
	settings     settings
	runtime      *goruntime.Runtime
	table        *cells.Table
	roots        roots
	attachCounts *attachCounts
	attachRegion *vma.Region
	library      *apmlib.Library
	records      *apmlib.Records
	socket       *profilersocket.Socket
	received     chan struct{} // closed when the socket is no longer read

	// service is the resource in the process storage. Without WithResource, it is nil until the
	// first span starts. The lock of package providers is held to change it.
	service      atomic.Pointer[resource.Resource]
	correlations correlations
	warned       warnings

	stopped atomic.Bool
}

// active is the integration of this process, or nil. There can be only one, because they would all
// publish through the same library.
var active atomic.Pointer[integration]

// latest is the integration that was created last. It stays set after Shutdown, because spans may
// still be on their way to an exporter.
var latest atomic.Pointer[integration]

// newIntegration creates an integration and makes it active. The lock of package providers is held.
func newIntegration(s settings, service *resource.Resource) (_ *integration, err error) {
	if !apmlib.Supported {
		return nil, errors.ErrUnsupported
	}
	i := &integration{settings: s, runtime: s.runtime, received: make(chan struct{}), roots: newRoots()}
	i.service.Store(service)
	if i.table, err = cells.New(cells.Options{Spare: i.isPublished, Evict: i.evict, Memory: vma.Private}); err != nil {
		return nil, err
	}
	if i.attachCounts, i.attachRegion, err = vma.NewOf[attachCounts](vma.Private); err != nil {
		return nil, errors.Join(err, i.table.Close())
	}
	i.correlations.start(i.table, s)
	// Create the socket first, because the process storage contains its path.
	if i.socket, err = listen(socketDirs(s.socketDir)); err != nil {
		return nil, errors.Join(err, i.closeMemory())
	}
	if i.library, err = apmlib.Install(libraryDirs(s.socketDir), i.storage(), s.runtime); err != nil {
		return nil, errors.Join(err, i.socket.Close(), i.closeMemory())
	}
	i.records = i.library.Records()
	go i.receive()
	active.Store(i)
	latest.Store(i)
	return i, nil
}

func (i *integration) closeMemory() error {
	return errors.Join(i.table.Close(), i.attachRegion.Retire())
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
				providers.Report(fmt.Errorf("universal profiling: %w; the socket is %s", errors.Join(errs...), s.Path()))
			}
			return s, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no directory for the socket: %w", errors.Join(errs...))
}

// storage returns the encoded process storage: the name and environment of the service, and the
// path of the socket.
func (i *integration) storage() []byte {
	r := i.service.Load()
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

// inactive reports whether no spans are published: i is nil or has been shut down.
func (i *integration) inactive() bool { return i == nil || i.stopped.Load() }

// OnStart implements [Integration.OnStart].
func (i *integration) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan, reference *providers.Reference) {
	if i.stopped.Load() {
		return
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
	n.Goid, n.LocalRootSpanID, n.Provider = goid, n.SpanID, reference.Number
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
	// or OnStart sees stopped. The same holds if only the span's provider is shut down.
	if (i.stopped.Load() || !reference.Counts()) && i.table.End(r) {
		i.clear(r)
	}
}

// parent returns the span of ctx, in which s starts. If that has ended, it returns the parent of
// that span, or 0 if that is not live either. If s has a local parent, the method sets the local
// root in n. likely is a guess of the parent, which saves a lookup.
func (i *integration) parent(ctx context.Context, s sdktrace.ReadWriteSpan, n *cells.Span, child bool, likely cells.Ref) cells.Ref {
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
func (i *integration) rootOfEnded(s sdktrace.ReadOnlySpan, parent cells.Ref, k sdkspan.Key) uint64 {
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

// setService stores r in the process storage, unless it is there or r is nil. The lock of package
// providers is held.
func (i *integration) setService(r *resource.Resource) {
	if old := i.service.Load(); r != nil && (old == nil || !providers.SameResource(r, old)) {
		i.service.Store(r)
		i.library.SetStorage(i.storage())
	}
}

// nearest returns ref if its span is live, otherwise its nearest live ancestor, or 0 if there is
// none.
func (i *integration) nearest(ref cells.Ref, goid uint64) cells.Ref {
	position, _ := i.table.Nearest(wire.Position(ref), goid)
	return position.Ref()
}

// position returns the live span that a goroutine is in, or 0, and whether the position is known.
func (i *integration) position(goid uint64) (current cells.Ref, known bool) {
	ref, known := i.records.Shown(goid)
	return i.nearest(cells.Ref(ref), goid), known
}

// publish publishes a live span on the calling goroutine's thread. If the span has ended in the
// meantime, it publishes the nearest live ancestor. It reports whether it succeeded.
func (i *integration) publish(ref cells.Ref, n *cells.Span, goid uint64) bool {
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
func (i *integration) publishRef(ref cells.Ref, goid uint64) bool {
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
func (i *integration) isPublished(ref cells.Ref, goid uint64, g uintptr) bool {
	shown, _ := i.records.Shown(goid)
	return cells.Ref(shown) == ref && i.runtime.Is(g, goid)
}

// clear clears all records that contain an ended span. It may be called while pinned.
func (i *integration) clear(ref cells.Ref) {
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
func (i *integration) evict(ref cells.Ref) bool {
	if !i.table.End(ref) {
		return false
	}
	i.correlations.counters.evicted.Add(1)
	i.clear(ref)
	return true
}

// OnEnd implements [Integration.OnEnd].
func (i *integration) OnEnd(s sdktrace.ReadOnlySpan) {
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
func (i *integration) dropEnded(shown cells.Ref, goid uint64) {
	if shown != 0 && !i.table.Live(shown) && !i.stopped.Load() {
		i.publishRef(i.nearest(shown, goid), goid)
	}
}

// endSpansOf ends the live spans of a provider that is gone, because the SDK does not report their end.
func (i *integration) endSpansOf(number uint16) {
	i.table.All(func(r cells.Ref) {
		if number != 0 && i.table.Provider(r) == number && i.table.End(r) {
			i.clear(r)
			i.table.Free(r)
		}
	})
}

// flush exports all waiting transactions.
func (i *integration) flush(ctx context.Context) error {
	i.correlations.flushed.Store(now())
	return i.correlations.release(ctx)
}

// shutdown unpublishes all spans and the process storage, removes the socket, and exports all waiting
// transactions. The caller has set stopped.
func (i *integration) shutdown(ctx context.Context) error {
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
	return errors.Join(err, i.socket.Close(), i.closeMemory())
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
