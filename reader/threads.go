// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/tlsvar"
	"github.com/otelctx/otelctx/ringbuf"
)

// Thread is a thread of a process, at one time.
type Thread struct {
	// TID is its id in the caller's PID namespace, OwnTID that in the namespace of the
	// process itself.
	TID, OwnTID int
	// Goroutine is the id of the goroutine that runs on the thread or waits on it for a
	// system call. 0: there is none, or it is not known.
	Goroutine uint64
	// Span is the span that the thread is in, nil if it is in none or that is not
	// known.
	Span *ThreadSpan
}

// ThreadSpan is the span that a thread is in.
type ThreadSpan struct {
	// TraceID and SpanID are in the order of their bytes in W3C trace contexts.
	// TraceFlags are W3C's too: 1 for sampled, and 0 in slots of layout 1.
	TraceID    [16]byte
	SpanID     [8]byte
	TraceFlags byte
	// LocalRootSpanID is the id of the outermost span of the trace in the process;
	// zeros where that is not known.
	LocalRootSpanID [8]byte
	// Name is the span's name, and Endpoint that of its local root, if the process publishes
	// names; at most 255 bytes, which should be UTF-8.
	Name, Endpoint string
	// Attributes are what the process shows with the span, of those whose names it
	// says, in no particular order, each name once.
	Attributes []ThreadAttribute
	// Carrier is what the span was read from.
	Carrier CarrierKind
	// Proven says that at one moment of the reading the thread ran Thread.Goroutine and
	// the process showed this span for that goroutine. If it is false, all that is
	// known is that the span was shown for the thread. Its goroutine may have moved on
	// since. In slots of layout 1 the span may even be another thread's.
	Proven bool

	// encoded are the attributes as OTEP 4947 has them.
	encoded []byte
	names   spanNames
}

// ThreadAttribute is an attribute of a [ThreadSpan].
type ThreadAttribute struct {
	// Key is the attribute's name. Value is whatever bytes the process shows, at most
	// 255; it should be UTF-8.
	Key, Value string
}

// threadTarget is what of a process, as the kernel shows it, only its threads need.
type threadTarget interface {
	ringbuf.Memory
	// Threads yields the ids of its threads.
	Threads() iter.Seq2[int, error]
	// ThreadIDs returns the ids of a thread, the one that it knows itself by last.
	ThreadIDs(tid int) ([]int, error)
	// PresentPages returns those pages from start to end that are in memory.
	PresentPages(start, end uint64) ([]uint64, error)
	// ThreadStart returns when a thread started, in clock ticks.
	ThreadStart(tid int) (uint64, error)
	// ProgramHeaders returns the address of the executable's program headers.
	ProgramHeaders() (uint64, error)
}

var _ threadTarget = linuxTarget{}

// threadState is what a Process remembers for [Process.Threads].
type threadState struct {
	source threadTarget

	mu   sync.Mutex
	view *threadView
	// namespaced says whether the process's own thread ids are others than the
	// caller's. It stays as it is for the life of a process.
	namespaced, namespaceKnown bool
	// names are those of the table nameTable that have been read so far.
	nameTable *NameTable
	names     []string
	// ms has the address of the runtime's m for the threads that were seen last, by
	// their own ids.
	ms map[int]uint64
	// variables are the thread-local variables of OTEP 4947 in the publication variablesOf, and unresolved is why others cannot be
	// used. pointers are the thread pointers of threads, by their ids.
	variables   []tlsvar.Variable
	variablesOf uint64
	unresolved  error
	pointers    map[int]knownPointer
}

// maxThreads bounds how many threads of a process are looked at.
const maxThreads = 1 << 17

// Threads returns the threads of the process, each with the span that it is in, and
// which of several carriers shows that one. They are read one after the other while the
// process runs on. So what is said of each thread holds for a moment of its own. At
// most 131,072 threads are returned.
//
// A span is proven, see [ThreadSpan.Proven], by the identity of the goroutine that
// published it, while nothing that was read for it changed. Where there could be proof
// and there is none, there is no span. The goroutine may have moved to another thread
// or be gone, or things may have changed at each reading. Spans are shown unproven only
// if the process uses slots of layout 1, or does not say where the Go runtime keeps
// goroutines.
//
// Which goroutine a thread runs is known to profilers that interrupt the thread. A
// reader in another process has to find the runtime's m of the thread first. The
// thread slots of layout 2 have its address. For a thread that has published nothing, Threads
// asks the goroutines that are in a span, by the goroutine table and the span table, on which
// thread they run. So only a goroutine that has inherited its span, on a thread that has published
// nothing so far, is not found.
//
// How carriers are found is remembered, and looked at again when the process advertises
// them anew. Then a process costs one system call, and a thread between one and
// about eight. While there are threads whose m is not known, it also costs reading the live spans
// and the used pages of the goroutine table. Without an advertisement it takes a look at all
// mappings, each time until a ring is found.
//
// The error wraps [ErrNoThreadContext] if the process shows no spans in a way that can
// be read. Else it wraps [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or
// [ErrBusy], or is ctx's.
func (p *Process) Threads(ctx context.Context) ([]Thread, error) {
	v, err := p.threadView(ctx)
	if errors.Is(err, ErrNoThreadContext) {
		if threads, contextErr := p.threadsByContext(ctx); !errors.Is(contextErr, ErrNoThreadContext) && !errors.Is(contextErr, ErrNoContext) {
			return threads, contextErr
		}
	}
	if err != nil {
		return nil, err
	}
	threads, err := p.listThreads(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.look(ctx, v, threads); err != nil {
		return nil, err
	}
	name := p.nameSpans(v)
	for i := range threads {
		if s := threads[i].Span; s != nil {
			s.Name, s.Endpoint = name(s.names)
		}
	}
	// Memory is read by the id: as long as the process lives it was this one's.
	if err := p.checkAlive(); err != nil {
		return nil, err
	}
	p.nameAttributes(ctx, v, threads)
	return threads, nil
}

// look fills in the goroutines and the spans of threads. A thread whose slot does not lead to its
// m, and whose m is not known from the last time, is looked at again if one of the goroutines that
// are in a span runs on it.
func (p *Process) look(ctx context.Context, v *threadView, threads []Thread) error {
	known := p.knownMs()
	ms := make(map[int]uint64, len(threads))
	look := newThreadLook(p.threads.source, v)
	at := func(t *Thread, m uint64) error {
		if err := ctx.Err(); err != nil {
			return p.error(err)
		}
		if err := look.at(t, m); err != nil {
			return p.classify(err)
		}
		if look.m != 0 {
			ms[t.OwnTID] = look.m
		}
		return nil
	}
	for i := range threads {
		if err := at(&threads[i], known[threads[i].OwnTID]); err != nil {
			return err
		}
	}
	if len(ms) < len(threads) && (v.goroutines != nil || v.recordOffset >= 0) {
		found := p.findMs(v)
		for i := range threads {
			t := &threads[i]
			if m := found[uint64(t.OwnTID)]; m != 0 && ms[t.OwnTID] == 0 {
				if err := at(t, m); err != nil {
					return err
				}
			}
		}
	}
	p.threads.mu.Lock()
	p.threads.ms = ms
	p.threads.mu.Unlock()
	return nil
}

func (p *Process) knownMs() map[int]uint64 {
	p.threads.mu.Lock()
	defer p.threads.mu.Unlock()
	return p.threads.ms
}

// listThreads returns the threads with their ids.
func (p *Process) listThreads(ctx context.Context) ([]Thread, error) {
	var threads []Thread
	for tid, err := range p.threads.source.Threads() {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, p.classify(err)
		}
		own, err := p.ownTID(tid)
		if errors.Is(err, procfs.ErrProcessGone) {
			continue // The thread is gone. If the process is too, that will be noticed.
		}
		if err != nil {
			return nil, p.classify(err)
		}
		threads = append(threads, Thread{TID: tid, OwnTID: own})
		if len(threads) == maxThreads {
			break
		}
	}
	return threads, nil
}

// ownTID returns the id by which a thread knows itself.
func (p *Process) ownTID(tid int) (int, error) {
	s := &p.threads
	s.mu.Lock()
	known, namespaced := s.namespaceKnown, s.namespaced
	s.mu.Unlock()
	if known && !namespaced {
		return tid, nil
	}
	ids, err := s.source.ThreadIDs(tid)
	if err != nil {
		return 0, err
	}
	if !known {
		s.mu.Lock()
		s.namespaceKnown, s.namespaced = true, len(ids) > 1
		s.mu.Unlock()
	}
	return ids[len(ids)-1], nil
}

// nameAttributes decodes the attributes of all spans. If one has a key that is not
// known, the process may have published it since: then it looks once.
func (p *Process) nameAttributes(ctx context.Context, v *threadView, threads []Thread) {
	keys, refreshed := v.keys, false
	for i := range threads {
		s := threads[i].Span
		if s == nil || len(s.encoded) == 0 {
			continue
		}
		var known bool
		s.Attributes, known = decodeAttributes(s.encoded, keys)
		if !known && !refreshed {
			refreshed = true
			// If that fails the attribute has no name, which is how it was.
			if _, advertisement, _, err := p.published(ctx); err == nil {
				keys = newAdvertisement(advertisement.message()).keys()
				s.Attributes, _ = decodeAttributes(s.encoded, keys)
			}
		}
	}
}

// decodeAttributes decodes {key u8, length u8, value} entries, of which the last one
// with a key counts. all is whether all keys are among keys. It stops at an entry that
// is not there to its end.
func decodeAttributes(encoded []byte, keys []string) (attributes []ThreadAttribute, all bool) {
	all = true
	at := make(map[string]int)
	for len(encoded) >= 2 {
		key, size := int(encoded[0]), int(encoded[1])
		if len(encoded) < 2+size {
			break
		}
		value := string(encoded[2 : 2+size])
		encoded = encoded[2+size:]
		if key >= len(keys) || keys[key] == "" {
			all = false
			continue
		}
		if i, ok := at[keys[key]]; ok {
			attributes[i].Value = value
			continue
		}
		at[keys[key]] = len(attributes)
		attributes = append(attributes, ThreadAttribute{keys[key], value})
	}
	return attributes, all
}
