// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/elastic"
	"github.com/otelctx/otelctx/internal/profilersocket"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// integration holds everything that exists only while spans are published. All [Integration] values
// share it.
type integration struct {
	settings settings
	path     *spanpath.Path
	library  *elastic.Library
	socket   *profilersocket.Socket
	received chan struct{} // closed when the socket is no longer read

	// service is the resource in the process storage. Without WithResource, it is nil until the
	// first span starts. The lock of package providers is held to change it.
	service      atomic.Pointer[resource.Resource]
	correlations correlations
	warned       warnings
}

// current is the integration of this process, or nil. There can be only one, because they would all
// publish through the same library.
var current atomic.Pointer[integration]

// latest is the integration that was created last. It stays set after Shutdown, because spans may
// still be on their way to an exporter.
var latest atomic.Pointer[integration]

// newIntegration creates an integration and makes it the current one. The lock of package providers is held.
func newIntegration(s settings, service *resource.Resource) (_ *integration, err error) {
	if !elastic.Supported {
		return nil, errors.ErrUnsupported
	}
	i := &integration{settings: s, received: make(chan struct{})}
	i.service.Store(service)
	// Create the socket first, because the process storage contains its path.
	if i.socket, err = listen(socketDirs(s.socketDir)); err != nil {
		return nil, err
	}
	if i.library, err = elastic.Install(libraryDirs(s.socketDir), i.storage(), s.runtime); err != nil {
		return nil, errors.Join(err, i.socket.Close())
	}
	if i.path, err = spanpath.Join(s.runtime, vma.Published); err != nil {
		i.library.Withdraw()
		return nil, errors.Join(err, i.socket.Close())
	}
	table, _ := i.path.Spans() // the profiler does not read it
	i.correlations.start(table, s)
	elastic := &spanpath.Elastic{Records: i.library.Records(), RootEnds: i.rootEnds, Failed: i.failed}
	i.path.Change(func(f *spanpath.Features) { f.Elastic = elastic })
	go i.receive()
	current.Store(i)
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

// sampled is the trace flag of sampled spans.
const sampled = uint8(trace.FlagsSampled)

// rootEnds stores the end of a local root.
func (i *integration) rootEnds(k sdkspan.Key, traceFlags uint8) {
	if traceFlags&sampled != 0 && i.correlations.enabled() {
		i.correlations.end(k)
	}
}

func (i *integration) failed(err error) { i.warned.once("spans are no longer published: %w", err) }

// setService stores r in the process storage, unless it is there or r is nil. The lock of package
// providers is held.
func (i *integration) setService(r *resource.Resource) {
	if old := i.service.Load(); r != nil && (old == nil || !providers.SameResource(r, old)) {
		i.service.Store(r)
		i.library.SetStorage(i.storage())
	}
}

// flush exports all waiting transactions.
func (i *integration) flush(ctx context.Context) error {
	i.correlations.flushed.Store(now())
	return i.correlations.release(ctx)
}

// shutdown unpublishes the process storage, removes the socket, exports all waiting transactions, and
// clears the records of all threads. It is no longer the current one. Spans that are live stay live
// until the end, because correlations of them may still arrive.
func (i *integration) shutdown(ctx context.Context) error {
	i.correlations.flushed.Store(^uint64(0))
	i.library.Withdraw()
	// Drain reads the messages that are already in the socket. They are also used for spans
	// that reach an exporter later.
	err := errors.Join(i.socket.Drain(ctx), i.correlations.release(ctx), i.socket.Stop())
	<-i.received
	defer providers.Lock()()
	return errors.Join(err, i.path.Leave(func(f *spanpath.Features) { f.Elastic = nil }), i.socket.Close())
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
