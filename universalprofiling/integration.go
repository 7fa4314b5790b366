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
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/apmlib"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/profilersocket"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spantable"
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
	table    *table
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
}

var _ sdktrace.SpanProcessor = (*Integration)(nil)

// active is the Integration of this process, or nil. There is one because there is one
// library.
var active atomic.Pointer[Integration]

// building is held while an Integration comes up or goes down.
var building sync.Mutex

// New returns an Integration, for who wants its errors; [WithIntegration] registers one.
// The error wraps [ErrAlreadyIntegrated], or [errors.ErrUnsupported] on other platforms;
// else it says what is not known of the Go runtime, or what has failed in which
// directories; then nothing is left behind. Being disabled is no error.
func New(opts ...Option) (*Integration, error) {
	s := newSettings(opts)
	if s.mode == Disabled {
		return new(Integration), nil
	}
	i, err := newIntegration(s)
	if err != nil {
		return nil, fmt.Errorf("universal profiling: %w", err)
	}
	return i, nil
}

// WithIntegration is [sdktrace.WithSpanProcessor] with a [New] Integration. An option
// cannot return an error: it goes to [otel.Handle], and the provider is none the worse
// for it. Where the process has an Integration already, the provider shares that one,
// and opts do not count; the Shutdown of either provider ends it for both.
//
// Without [NewExporter] spans are shown, but nothing comes back.
func WithIntegration(opts ...Option) sdktrace.TracerProviderOption {
	i, err := New(opts...)
	if errors.Is(err, ErrAlreadyIntegrated) {
		i = active.Load()
	} else if err != nil {
		otel.Handle(err)
	}
	return sdktrace.WithSpanProcessor(i)
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
		settings: s, runtime: s.runtime, received: make(chan struct{}),
	}
	i.table = newTable(i.evict)
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
	return i, nil
}

// socketName is the name of the socket's file. It is one for the life of the process: a
// profiler that has read it goes on sending there when another Integration follows.
var socketName = sync.OnceValue(func() string {
	return fmt.Sprintf("otelctx-%d-%s.sock", os.Getpid(), rand.Text()[:8])
})

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

// OnStart shows the span on the calling goroutine's thread.
func (i *Integration) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if i.off() {
		return
	}
	if i.service.Load() == nil {
		i.serve(s.Resource())
	}
	var l live
	k, traceFlags, _, _ := sdkspan.Started(s)
	l.ID, l.traceIDHigh, l.traceIDLow = stored(k.SpanID), stored(k.TraceIDHigh), stored(k.TraceIDLow)
	l.transaction = l.ID
	l.origin = origin(i.runtime.GoroutineID()<<goidShift | uint64(traceFlags))
	i.follow(s, &l)
	at := i.show(&l)
	if !i.table.Reserve(l.ID, &l.span) {
		// It could not be taken back at its end.
		i.records.Clear(at, l.ID)
		return
	}
	l.store(at)
	if i.stopped.Load() {
		i.end(&l, 0)
	}
}

// follow has a span that starts follow its parent, unless that is remote: another
// process's.
func (i *Integration) follow(s sdktrace.ReadWriteSpan, child *live) {
	k, remote := sdkspan.Parent(s)
	if k.SpanID == 0 || remote || stored(k.TraceIDHigh) != child.traceIDHigh || stored(k.TraceIDLow) != child.traceIDLow {
		child.origin |= localRoot
		return
	}
	var parent live
	if findLive(i.table, child.traceIDHigh, child.traceIDLow, stored(k.SpanID), &parent) {
		child.transaction = parent.transaction
		if i.records.Shown() == parent.ID {
			child.resumes = uint64(parent.Ref())
		}
	}
}

// sampled is the trace flag that says so.
const sampled = uint8(trace.FlagsSampled)

// number reads an id in the machine's byte order, in which its bytes are stored again for
// the profiler.
func number(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

// stored returns number for an id that was read as a big-endian number.
func stored(id uint64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], id)
	return number(b[:])
}

// serve takes the resource of the first span for the service's, if none was given.
func (i *Integration) serve(r *resource.Resource) {
	if i.service.CompareAndSwap(nil, r) {
		i.library.SetStorage(i.storage())
	}
}

// show shows a span on the calling thread and returns where.
func (i *Integration) show(l *live) apmlib.Place {
	// Fields are assigned one by one: a struct that is made somewhere else and copied
	// at once would hold up the processor.
	var s apmlib.Span
	s.TraceIDHigh, s.TraceIDLow = l.traceIDHigh, l.traceIDLow
	s.SpanID, s.TransactionID, s.TraceFlags = l.ID, l.transaction, l.origin.flags()
	s.Show()
	at := i.records.Store(&s)
	if at == 0 {
		if err := i.records.Err(); err != nil {
			i.warned.once(warnRecords, fmt.Errorf("spans are not shown any more: %w", err))
		}
	}
	return at
}

// evict takes back what has to give way to another span.
func (i *Integration) evict(s *span) {
	if s.Data().origin&ended == 0 {
		i.records.Clear(place(s), s.ID)
	}
}

// OnEnd takes the span back, wherever it is shown. A transaction is remembered as long
// as it may take until it is exported.
func (i *Integration) OnEnd(s sdktrace.ReadOnlySpan) {
	if i == nil || i.records == nil {
		return
	}
	var l live
	k, traceFlags := sdkspan.Ended(s)
	if findLive(i.table, stored(k.TraceIDHigh), stored(k.TraceIDLow), stored(k.SpanID), &l) {
		exports := uint64(0)
		if l.origin&localRoot != 0 && traceFlags&sampled != 0 && i.correlations.on() {
			exports = i.correlations.exporters.Load()
		}
		if i.end(&l, exports) {
			return
		}
	}
	// It has given way, or is about to: that may take until after the end.
	i.table.Claimed(stored(k.SpanID), func(s *span) { i.records.Clear(place(s), s.ID) })
}

// end ends the life of a span, unless somebody else does, and reports whether it did. A
// transaction that so many exporters wait for is kept.
func (i *Integration) end(l *live, exports uint64) bool {
	if !l.Claim() {
		return false
	}
	i.withdraw(l)
	if exports > 0 {
		l.end(now(), exports)
	} else {
		l.Free()
	}
	return true
}

// withdraw takes a span back whose entry is claimed. Where the goroutine that started it
// goes on, its parent is shown again, if that goroutine was showing it before and it is
// live; elsewhere nothing is.
func (i *Integration) withdraw(l *live) {
	if l.origin.goid() == i.runtime.GoroutineID() && i.records.Shown() == l.ID {
		var parent live
		if l.resumes == 0 || !i.table.Follow(spantable.Ref(l.resumes), &parent.span) || !parent.load() || parent.origin&ended != 0 {
			i.records.Store(nil)
		} else if at := i.show(&parent); at != 0 && !parent.note(at) {
			// It has ended meanwhile.
			i.records.Clear(at, parent.ID)
		}
	}
	i.records.Clear(place(&l.span), l.ID)
}

// ForceFlush exports what the exporters keep back, as far as ctx allows, and has them
// export at once what ended before.
func (i *Integration) ForceFlush(ctx context.Context) error {
	if i == nil || i.records == nil {
		return nil
	}
	i.correlations.flushed.Store(now())
	return i.correlations.release(ctx)
}

// Shutdown takes everything back: the spans that are still shown, the process storage
// and the socket; and exports what the exporters keep back, as far as ctx allows. Spans
// may start and end meanwhile and afterwards; they are not shown, and not kept back.
// Later calls return what the first one did.
func (i *Integration) Shutdown(ctx context.Context) error {
	if i == nil || i.records == nil {
		return nil
	}
	i.shutdown.Do(func() {
		building.Lock()
		defer building.Unlock()
		i.stopped.Store(true)
		i.correlations.flushed.Store(^uint64(0))
		i.library.Withdraw()
		err := i.socket.Stop()
		<-i.received
		// Who starts a span adds it to the table and then looks whether all has
		// stopped, and the processor may do the latter first. This stops the world:
		// whoever has not seen by then that all has stopped has added by then.
		runtime.ReadMemStats(new(runtime.MemStats))
		i.table.All(func(s *span) {
			if l := (live{span: *s}); l.load() && l.origin&ended == 0 {
				i.end(&l, 0)
			}
		})
		i.shutdownErr = errors.Join(err, i.socket.Close(), i.correlations.release(ctx))
		active.CompareAndSwap(i, nil)
	})
	return i.shutdownErr
}

// The things that are warned of once.
const (
	warnRecords = iota
	warnFull
	warnHostID
	warnDelay
	warnSocket
	warnSamples
	numWarnings
)

// warnings are those that have been given.
type warnings [numWarnings]atomic.Bool

// once reports err, the first time for each kind.
func (w *warnings) once(kind int, err error) {
	if !w[kind].Swap(true) {
		otel.Handle(fmt.Errorf("universal profiling: %w", err))
	}
}
