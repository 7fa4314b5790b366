// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/tlsvar"
)

// Thread is a snapshot of one thread of a process.
type Thread struct {
	// TID is the thread's id in the caller's PID namespace. OwnTID is its id in the process's own
	// PID namespace.
	TID, OwnTID int
	// Goroutine is the id of the goroutine that is running on the thread, or is in a system call on
	// it. It is 0 if there is none or it is unknown.
	Goroutine uint64
	// Span is the thread's active span, or nil if there is none or it is unknown.
	Span *ThreadSpan
	// Err is the reason why the thread could not be read, for example because another process
	// traces it. It is nil if the thread was read. Only threads that publish thread contexts (OTEP
	// 4947) can have an error, see [ThreadContext.Err].
	Err error
}

// ThreadSpan is the active span of a thread.
type ThreadSpan struct {
	// TraceID and SpanID are in the byte order of W3C Trace Context. TraceFlags are the W3C trace
	// flags, in which 1 means sampled. They are 0 if the span comes from a slot of layout 1, which
	// has no flags.
	TraceID    [16]byte
	SpanID     [8]byte
	TraceFlags byte
	// LocalRootSpanID is the id of the local root, the outermost span of the trace in the process.
	// It is all zeros if unknown.
	LocalRootSpanID [8]byte
	// Name is the span's name, and Endpoint is the name of its local root. Each has at most 255
	// bytes, which should be UTF-8. They are empty if the process publishes no names.
	Name, Endpoint string
	// Attributes lists the attributes published with the span, in no particular order and with at
	// most one for each key. Attributes whose keys the process does not publish are left out.
	Attributes []Attribute
	// Carrier is the kind of carrier in which the span was found.
	Carrier CarrierKind
	// Proven says that there was a moment during the read at which the thread ran the goroutine in
	// Thread.Goroutine and the process published this span for that goroutine. For a
	// [ThreadContextRecord], it says only that the thread published the span. If Proven is false,
	// the span is only the last one published for the thread: the goroutine that published it may
	// have moved to another thread since. A span from a slot of layout 1 may even belong to another
	// thread.
	Proven bool

	// encoded holds the attributes in the encoding of OTEP 4947.
	encoded []byte
	names   spanNames
}

// Attribute is an attribute of a span.
type Attribute struct {
	// Key is the attribute's name. Value is its value as published. It has at most 255 bytes, which
	// should be UTF-8.
	Key, Value string
}

// threadTarget gives access to the threads and the memory of a process. Tests replace it.
type threadTarget interface {
	remotemem.Reader
	// Threads yields the ids of the process's threads.
	Threads() iter.Seq2[int, error]
	// ThreadIDs returns the ids of a thread in its PID namespaces. The last id is the one in the
	// process's own namespace.
	ThreadIDs(tid int) ([]int, error)
	// PresentPages returns the addresses of the pages between start and end that are present in
	// memory.
	PresentPages(start, end uint64) ([]uint64, error)
	// ThreadStat returns the state and the start time of a thread.
	ThreadStat(tid int) (procfs.ThreadStat, error)
	// ProgramHeaders returns the address of the executable's program headers.
	ProgramHeaders() (uint64, error)
}

var _ threadTarget = linuxTarget{}

// untilDone is a target whose memory cannot be read once ctx is done. So loops over the memory, whose
// length the process chooses, end with ctx.
type untilDone struct {
	threadTarget
	ctx context.Context //nolint:containedctx // it lives as long as one call
}

func (t untilDone) ReadParts(parts []remotemem.Part) (int, error) {
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	return t.threadTarget.ReadParts(parts)
}

// until returns the process's threads and memory, which can be read until ctx is done.
func (p *Process) until(ctx context.Context) threadTarget { return untilDone{p.threads.source, ctx} }

// threadState caches what [Process.Threads] needs between calls.
type threadState struct {
	source threadTarget

	mu   sync.Mutex
	view *threadView
	// namespaced says that the process is in another PID namespace than the caller. This never
	// changes. namespaceKnown says that namespaced is set.
	namespaced, namespaceKnown bool
	// names holds the names that have been read from nameTable so far, by number.
	nameTable *Table
	names     []string
	// ms holds the addresses of the m structs that the last call of Threads has found, by thread id
	// in the process's own PID namespace.
	ms map[int]uint64
	// variables and unresolved are the cached result of threadVariables for the publication at
	// variablesPublishedAt. pointers caches thread pointers by thread id.
	variables            []tlsvar.Variable
	variablesPublishedAt uint64
	unresolved           error
	pointers             map[int]cachedPointer
}

// maxThreads is the maximum number of threads that are read from a process.
const maxThreads = 1 << 17

// Threads returns the threads of the process, each with its active span. It reads one thread after
// the other while the process keeps running, so each is a snapshot of a different moment. It
// returns at most 131,072 threads.
//
// If the process publishes enough data, Threads proves that each span belongs to the goroutine that
// the thread is running (see [ThreadSpan.Proven]). If the proof fails, the thread has no span in
// the result: its goroutine may have moved or exited, or the data changed at every attempt. Threads
// returns unproven spans only if the process uses slots of layout 1 or does not publish the runtime
// offsets that lead to goroutines.
//
// To find a thread's goroutine, Threads must know the address of the thread's m, the Go runtime's
// struct for a thread. Thread slots of layout 2 contain it. For threads that have published
// nothing, Threads takes the goroutines in the goroutine table and the span table, and follows
// their pointers to the m structs of their threads. This misses only a goroutine that has inherited
// its span and runs on a thread that has published nothing.
//
// Threads caches the location of the carriers until the process advertises them again. With a warm
// cache, a call costs one system call for the process and between one and about eight for each
// thread. If the m of some threads is unknown, it also reads the live spans and the used pages of
// the goroutine table. If nothing is advertised, each call scans all mappings until one finds a
// ring. After that, Threads scans them at most once per second.
//
// The error wraps [ErrNoThreadContext] if the process has no readable carrier. Any other error
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

// readThreads sets Goroutine and Span of each thread. It finds the m of a thread in the thread's
// slot or in the results of the last call. Otherwise it searches for the m with findMs, and reads
// the thread again if it finds one.
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
	if len(ms) < len(threads) && (v.goroutines != nil || v.record.Offset > 0) {
		found := findMs(p.until(ctx), v)
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

// listThreads returns the threads of the process, with only their ids set.
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
			continue // The thread has exited. If the whole process has, checkAlive reports it later.
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

// ownTID converts a thread id of the caller's PID namespace to one of the process's own.
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

// nameAttributes decodes the attributes of the threads' spans.
func (p *Process) nameAttributes(ctx context.Context, v *threadView, threads []Thread) {
	decode := p.attributeDecoder(ctx, v)
	for i := range threads {
		if s := threads[i].Span; s != nil && len(s.encoded) > 0 {
			s.Attributes = decode(s.encoded)
		}
	}
}

// attributeDecoder returns a function that decodes attributes. At the first unknown key, the
// function reads the published keys again, because the key may have been added since v was made. It
// does so only once.
func (p *Process) attributeDecoder(ctx context.Context, v *threadView) func(encoded []byte) []Attribute {
	keys, refreshed := v.keys, false
	return func(encoded []byte) []Attribute {
		attributes, complete := decodeAttributes(encoded, keys)
		if !complete && !refreshed {
			refreshed = true
			if _, advertisement, _, err := p.published(ctx); err == nil {
				keys = newAdvertisement(advertisement).keys()
				attributes, _ = decodeAttributes(encoded, keys)
			}
		}
		return attributes
	}
}

// decodeAttributes decodes entries {key u8, length u8, value}. It stops at a truncated entry. If
// several entries have the same key, the last one wins. It leaves out entries whose keys have no
// name in keys. all is true if there are no such entries.
func decodeAttributes(encoded []byte, keys []string) (attributes []Attribute, all bool) {
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
		attributes = append(attributes, Attribute{keys[key], value})
	}
	return attributes, all
}
