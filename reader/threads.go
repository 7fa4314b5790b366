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

// Thread is a snapshot of one thread of a process.
type Thread struct {
	// TID is the thread's id in the caller's PID namespace, OwnTID its id in the namespace of the
	// process itself.
	TID, OwnTID int
	// Goroutine is the id of the goroutine that runs on the thread or occupies it during a
	// system call. It is 0 if there is no such goroutine, or if it is unknown.
	Goroutine uint64
	// Span is the thread's active span, or nil if there is none or it is unknown.
	Span *ThreadSpan
}

// ThreadSpan is the active span of a thread.
type ThreadSpan struct {
	// TraceID and SpanID are in W3C trace context byte order. TraceFlags has W3C trace flags: 1
	// if the span is sampled. It is 0 if the span comes from a slot of layout 1, which has no
	// flags.
	TraceID    [16]byte
	SpanID     [8]byte
	TraceFlags byte
	// LocalRootSpanID is the id of the outermost span of the trace in the process. It is all
	// zeros if unknown.
	LocalRootSpanID [8]byte
	// Name is the span's name, and Endpoint the name of its local root, if the process publishes
	// names. Each has at most 255 bytes, which should be UTF-8.
	Name, Endpoint string
	// Attributes lists the attributes published with the span, each key once, in no particular
	// order. Attributes whose keys the process does not publish are left out.
	Attributes []ThreadAttribute
	// Carrier is the kind of carrier in which the span was found.
	Carrier CarrierKind
	// Proven says that at one moment during the read the thread ran Thread.Goroutine and the
	// process published this span for that goroutine. If it is false, the span is only known to
	// have been published for the thread: the goroutine may have moved to another thread since.
	// A span from a slot of layout 1 may even belong to another thread.
	Proven bool

	// encoded holds the attributes in the encoding of OTEP 4947.
	encoded []byte
	names   spanNames
}

// ThreadAttribute is an attribute of a [ThreadSpan].
type ThreadAttribute struct {
	// Key is the attribute's name. Value is the value as published, at most 255 bytes, which should
	// be UTF-8.
	Key, Value string
}

// threadTarget is the kernel's interface to a process's threads and their memory.
type threadTarget interface {
	ringbuf.Memory
	// Threads yields the ids of the process's threads.
	Threads() iter.Seq2[int, error]
	// ThreadIDs returns the ids of a thread in its PID namespaces, the innermost last.
	ThreadIDs(tid int) ([]int, error)
	// PresentPages returns the pages from start to end that are in memory.
	PresentPages(start, end uint64) ([]uint64, error)
	// ThreadStart returns when a thread started, in clock ticks.
	ThreadStart(tid int) (uint64, error)
	// ProgramHeaders returns the address of the executable's program headers.
	ProgramHeaders() (uint64, error)
}

var _ threadTarget = linuxTarget{}

// threadState caches what [Process.Threads] needs between calls.
type threadState struct {
	source threadTarget

	mu   sync.Mutex
	view *threadView
	// namespaced says whether the process's own thread ids differ from the caller's. It never
	// changes during the life of a process.
	namespaced, namespaceKnown bool
	// names holds the names that have been read from nameTable so far.
	nameTable *NameTable
	names     []string
	// ms maps the threads of the last read to the addresses of their runtime m. The keys are
	// thread ids in the process's own PID namespace.
	ms map[int]uint64
	// variables lists the definitions of OTEP 4947's thread-local variable that were resolved
	// for the publication at variablesPublishedAt. unresolved says why other definitions cannot
	// be used. pointers caches thread pointers by thread id.
	variables            []tlsvar.Variable
	variablesPublishedAt uint64
	unresolved           error
	pointers             map[int]cachedPointer
}

// maxThreads bounds the number of threads read from a process.
const maxThreads = 1 << 17

// Threads returns the threads of the process, each with its active span. It reads one thread after
// the other while the process keeps running, so each thread is a snapshot of a different moment. At
// most 131,072 threads are returned.
//
// A span is proven, see [ThreadSpan.Proven], if the identity of the goroutine that published it was
// verified and nothing read for it changed meanwhile. If the process supports that proof but the
// proof fails, Threads returns no span for the thread: the goroutine may have moved to another
// thread or exited, or the data changed at each read. Unproven spans are returned only if the
// process uses slots of layout 1, or does not publish the runtime offsets of its goroutines.
//
// A profiler that interrupts a thread knows which goroutine the thread runs. A reader in another
// process first has to find the thread's runtime m. Thread slots of layout 2 hold its address.
// For a thread that has published nothing, Threads follows the goroutines inside a span, which
// it finds through the goroutine table and the span table, to their threads. This misses only a
// goroutine that inherited its span and runs on a thread that has published nothing so far.
//
// The location of the carriers is cached until the process advertises them again. With a warm
// cache, a call costs one system call for the process and between one and about eight for each
// thread. While the m of some threads is unknown, it also reads the live spans and the used
// pages of the goroutine table. Without an advertisement, each call scans all mappings until it
// finds a ring.
//
// The error wraps [ErrNoThreadContext] if the process has no readable carrier. Otherwise it
// wraps [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or [ErrBusy], or comes from ctx.
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
	if err := p.readThreads(ctx, v, threads); err != nil {
		return nil, err
	}
	name := p.nameSpans(v)
	for i := range threads {
		if s := threads[i].Span; s != nil {
			s.Name, s.Endpoint = name(s.names)
		}
	}
	if err := p.confirm(v); err != nil {
		return nil, err
	}
	p.nameAttributes(ctx, v, threads)
	return threads, nil
}

// readThreads fills in the goroutines and the spans of threads. If the m of a thread is neither
// in the thread's slot nor known from the last call, readThreads searches for it among the
// goroutines inside spans, and reads the thread again if it is found.
func (p *Process) readThreads(ctx context.Context, v *threadView, threads []Thread) error {
	cached := p.cachedMs()
	ms := make(map[int]uint64, len(threads))
	reader := newThreadReader(p.threads.source, v)
	read := func(t *Thread, m uint64) error {
		if err := ctx.Err(); err != nil {
			return p.error(err)
		}
		if err := reader.read(t, m); err != nil {
			return p.classify(err)
		}
		if reader.m != 0 {
			ms[t.OwnTID] = reader.m
		}
		return nil
	}
	for i := range threads {
		if err := read(&threads[i], cached[threads[i].OwnTID]); err != nil {
			return err
		}
	}
	if len(ms) < len(threads) && (v.goroutines != nil || v.recordOffset >= 0) {
		found := p.findMs(v)
		for i := range threads {
			t := &threads[i]
			if m := found[uint64(t.OwnTID)]; m != 0 && ms[t.OwnTID] == 0 {
				if err := read(t, m); err != nil {
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

func (p *Process) cachedMs() map[int]uint64 {
	p.threads.mu.Lock()
	defer p.threads.mu.Unlock()
	return p.threads.ms
}

// listThreads returns the threads. Only their ids are set.
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
			continue // The thread has exited. If the process has too, checkAlive reports it.
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

// ownTID returns the id of a thread in the process's own PID namespace.
func (p *Process) ownTID(tid int) (int, error) {
	s := &p.threads
	s.mu.Lock()
	cached, namespaced := s.namespaceKnown, s.namespaced
	s.mu.Unlock()
	if cached && !namespaced {
		return tid, nil
	}
	ids, err := s.source.ThreadIDs(tid)
	if err != nil {
		return 0, err
	}
	if !cached {
		s.mu.Lock()
		s.namespaceKnown, s.namespaced = true, len(ids) > 1
		s.mu.Unlock()
	}
	return ids[len(ids)-1], nil
}

// nameAttributes decodes the attributes of the spans of all threads.
func (p *Process) nameAttributes(ctx context.Context, v *threadView, threads []Thread) {
	decode := p.attributeDecoder(ctx, v)
	for i := range threads {
		if s := threads[i].Span; s != nil && len(s.encoded) > 0 {
			s.Attributes = decode(s.encoded)
		}
	}
}

// attributeDecoder returns a function that decodes attributes. An unknown key may have been
// published since the view was made, so the function reads the keys again at the first unknown
// key.
func (p *Process) attributeDecoder(ctx context.Context, v *threadView) func(encoded []byte) []ThreadAttribute {
	keys, refreshed := v.keys, false
	return func(encoded []byte) []ThreadAttribute {
		attributes, complete := decodeAttributes(encoded, keys)
		if !complete && !refreshed {
			refreshed = true
			// If this fails, attributes with unknown keys are left out.
			if _, advertisement, _, err := p.published(ctx); err == nil {
				keys = newAdvertisement(advertisement.message()).keys()
				attributes, _ = decodeAttributes(encoded, keys)
			}
		}
		return attributes
	}
}

// decodeAttributes decodes {key u8, length u8, value} entries. If several entries have the same
// key, the last one counts. all reports whether every key is in keys. Decoding stops at a
// truncated entry.
func decodeAttributes(encoded []byte, keys []string) (attributes []ThreadAttribute, all bool) {
	all = true
	positions := make(map[string]int)
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
		if i, ok := positions[keys[key]]; ok {
			attributes[i].Value = value
			continue
		}
		positions[keys[key]] = len(attributes)
		attributes = append(attributes, ThreadAttribute{keys[key], value})
	}
	return attributes, all
}
