// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/ringbuf"
)

// In this test a child process starts spans, and the test reads its memory. The ids of a span
// show where it comes from. The number of a trace combines the number of the worker that started it
// and the worker's count of traces. The trace id is computed from the number of the trace. The span
// id combines that number and the depth of the span in the trace, which starts at 1.

const (
	roundBits = 26
	// kinds is the number of spans in a trace: root, child and grandchild.
	kinds = 3
)

// ownIDs generates these ids. The context must contain the worker that starts the span.
type ownIDs struct{}

type workerKey struct{}

func (g ownIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	w := ctx.Value(workerKey{}).(*worker)
	w.traces++
	w.spans = 0
	id := traceID(uint64(w.number)<<roundBits | w.traces)
	return id, g.NewSpanID(ctx, id)
}

func (ownIDs) NewSpanID(ctx context.Context, t trace.TraceID) (id trace.SpanID) {
	w := ctx.Value(workerKey{}).(*worker)
	w.spans++
	binary.BigEndian.PutUint64(id[:], binary.BigEndian.Uint64(t[8:])<<spanBits|w.spans)
	return id
}

// worker is a goroutine in the child process that starts spans.
type worker struct {
	number        int
	traces, spans uint64
	ctx           context.Context
	tracer        trace.Tracer
}

func newWorker(number int, tracer trace.Tracer) *worker {
	w := &worker{number: number, tracer: tracer}
	w.ctx = context.WithValue(context.Background(), workerKey{}, w)
	return w
}

// trace starts the spans of a new trace, each as a child of the previous one.
func (w *worker) trace() (ctxs [kinds]context.Context, spans [kinds]trace.Span) {
	ctx := w.ctx
	for i := range spans {
		ctx, spans[i] = w.tracer.Start(ctx, "span")
		ctxs[i] = ctx
	}
	return ctxs, spans
}

// newTracer sets up a child process: it publishes a resource, turns on all carriers and returns a
// tracer.
func newTracer(parent *childproc.Parent, capacity int) trace.Tracer {
	_, err := resourcepublisher.NewPublisher(resource.Empty())
	parent.Must(err)
	p, err := NewSpanProcessor(WithSlotCapacity(capacity))
	parent.Must(err)
	parent.Must(p.Err())
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p), sdktrace.WithIDGenerator(ownIDs{})).Tracer("test")
}

// id is the result of decoding the ids of a span.
type id struct {
	worker int
	round  uint64
	kind   int
}

// idOf decodes the ids of a span, and returns an error if they are inconsistent.
func idOf(traceID [16]byte, spanID [8]byte) (id, error) {
	high, n := binary.BigEndian.Uint64(traceID[:8]), binary.BigEndian.Uint64(traceID[8:])
	span := binary.BigEndian.Uint64(spanID[:])
	i := id{int(n >> roundBits), n & (1<<roundBits - 1), int(span & (1<<spanBits - 1))}
	if high != mix(n) || span>>spanBits != n || i.kind < 1 || i.kind > kinds || i.round == 0 {
		return i, fmt.Errorf("trace %x, span %x", traceID, spanID)
	}
	return i, nil
}

// idOfSlot decodes the ids of the span in a slot, and returns an error if the slot is inconsistent.
func idOfSlot(number uint64, capacity int, s *ringbuf.Slot) (id, error) {
	i, err := idOf(s.TraceID, s.SpanID)
	if err != nil || s.TraceFlags != byte(trace.FlagsSampled) ||
		uint64(s.TID)%uint64(capacity) != number || s.Owner == 0 || s.TID == 0 || s.M == 0 {
		return i, fmt.Errorf("slot %d: %+v", number, *s)
	}
	return i, nil
}

const (
	lockstepWorkers  = 32
	lockstepCapacity = 64
	// inheritors is the number of live goroutines that each worker has started inside its spans:
	// one in the current round and one in the previous round.
	inheritors = 2
)

// lockstep is a child process that runs a round for each command, and answers when the round is
// complete. In a round, every worker ends the root span of its previous trace, starts a new trace,
// and ends all spans of that trace except the root.
type lockstep struct {
	workers [lockstepWorkers]*worker
	// roots holds the context of each worker's open root span.
	roots [lockstepWorkers]atomic.Pointer[context.Context]
	// gs holds the address of each worker's g, followed by the addresses of the gs of the
	// goroutines that were started inside its spans.
	gs     [lockstepWorkers * (1 + inheritors)]atomic.Uint64
	round  atomic.Uint64
	done   sync.WaitGroup
	helper chan func()
	failed atomic.Bool
}

func beLockstep(parent *childproc.Parent) {
	runtime.GOMAXPROCS(4)
	l := &lockstep{helper: make(chan func())}
	tracer := newTracer(parent, lockstepCapacity)
	go func() {
		for f := range l.helper {
			f()
		}
	}()
	next := make([]chan struct{}, lockstepWorkers)
	for i := range l.workers {
		l.workers[i] = newWorker(i, tracer)
		next[i] = make(chan struct{})
		go l.work(l.workers[i], next[i])
	}
	parent.Send("%p", &l.gs)
	for {
		if _, ok := parent.Receive(); !ok {
			return
		}
		l.done.Add(lockstepWorkers)
		l.round.Add(1)
		for i, c := range next {
			if i > 0 || !waitsBusily(l.round.Load()-1) {
				c <- struct{}{}
			}
		}
		l.done.Wait()
		if l.failed.Load() {
			return
		}
		parent.Send("done")
	}
}

// waitsBusily reports whether the first worker spins instead of blocking at the end of a round,
// which keeps its thread running.
func waitsBusily(round uint64) bool { return round%8 == 0 }

// note stores the address of the calling goroutine's g at index at of l.gs.
func (l *lockstep) note(at int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g, err := currentG()
	if err != nil {
		fmt.Println(err) // an answer that the parent does not expect
		l.failed.Store(true)
	}
	l.gs[at].Store(g)
}

func (l *lockstep) work(w *worker, next chan struct{}) {
	random := rand.New(rand.NewPCG(3, uint64(w.number)))
	if w.number%4 == 1 {
		runtime.LockOSThread()
	}
	l.note(w.number)
	var (
		root     trace.Span
		attached Attachment
		release  [inheritors]chan struct{}
	)
	// anywhere ends a span on this goroutine or a different one, at random.
	anywhere := func(ctx context.Context, span trace.Span) {
		switch random.IntN(4) {
		case 0:
			ended := make(chan struct{})
			l.helper <- func() { span.End(); close(ended) }
			<-ended
		case 1:
			ended := make(chan struct{})
			Go(ctx, func(context.Context) { span.End(); close(ended) })
			<-ended
		default:
			span.End()
		}
	}
	for round := uint64(1); ; round++ {
		if w.number == 0 && waitsBusily(round-1) {
			for n := 1; l.round.Load() < round; n++ {
				if n%10_000 == 0 {
					runtime.Gosched()
				}
			}
		} else {
			<-next
		}
		detachFirst := random.IntN(2) == 0
		if detachFirst {
			attached.Detach()
		}
		if root != nil {
			anywhere(*l.roots[w.number].Load(), root)
		}
		if !detachFirst {
			attached.Detach()
		}
		ctxs, spans := w.trace()
		root = spans[0]
		l.roots[w.number].Store(&ctxs[0])
		if r := release[round%inheritors]; r != nil {
			close(r)
		}
		// This goroutine is started inside all three spans, and inherits the innermost.
		r, started := make(chan struct{}), make(chan struct{})
		release[round%inheritors] = r
		go func() {
			l.note(lockstepWorkers*(1+int(round%inheritors)) + w.number)
			if random.IntN(2) == 0 {
				spans[2].End()
			}
			close(started)
			<-r
		}()
		<-started
		order := [2]int{2, 1}
		if random.IntN(4) == 0 {
			order = [2]int{1, 2}
		}
		for _, kind := range order {
			anywhere(ctxs[kind], spans[kind])
		}
		attached = Attachment{}
		if random.IntN(3) == 0 {
			// The root span may belong to another worker, which may have ended it, or may end it
			// while it is attached here.
			if ctx := l.roots[random.IntN(lockstepWorkers)].Load(); ctx != nil {
				attached = Attach(*ctx)
			}
		}
		l.done.Done()
	}
}

// TestNoProcessSeesEndedSpans checks that another process finds ended spans in no slot, in no
// record and on no thread. While the child is read, it starts and ends no span.
func TestNoProcessSeesEndedSpans(t *testing.T) {
	c := childproc.Start(t, roleLockstep, nil)
	var gsAt uint64
	_, err := fmt.Sscanf(c.Receive(), "0x%x", &gsAt)
	require.NoError(t, err)
	o := openOutside(t, c.PID())
	goidAt := o.integer(t, "threadlocal.go.g_goid_offset")

	const perRound = lockstepWorkers * kinds
	rounds := uint64(testenv.Rounds(100, 1000))
	var bySlot, byRecord, byThread, invalid, ended int
	for round := uint64(1); round <= rounds; round++ {
		require.Equal(t, "done", c.Ask("go"))
		check := func(where string, i id, err error) {
			t.Helper()
			require.NoError(t, err, where)
			if i.kind != 1 || i.round != round {
				t.Fatalf("%s: %+v is published after round %d", where, i, round)
			}
		}
		o.settled(t, func(n uint64, s *ringbuf.Slot) {
			if s.HasSpan() && o.live(t, s.Ref) {
				i, err := idOfSlot(n, lockstepCapacity, s)
				check("slot", i, err)
				bySlot++
			}
		})
		spans, err := o.Spans(t.Context())
		require.NoError(t, err)
		require.Len(t, spans, lockstepWorkers)
		for _, s := range spans {
			i, err := idOf(s.TraceID, s.SpanID)
			check("cell", i, err)
			require.Equal(t, s.SpanID, s.LocalRootSpanID)
		}
		gs := o.bytes(t, gsAt, 8*lockstepWorkers*(1+inheritors))
		for ; len(gs) > 0; gs = gs[8:] {
			g := binary.NativeEndian.Uint64(gs)
			if g == 0 {
				continue // not in use yet
			}
			require.NotZero(t, o.word(t, g+goidAt))
			r := o.record(t, g)
			if r == nil {
				continue
			}
			i, err := idOf(r.traceID, r.spanID)
			if !r.valid {
				invalid++
				continue
			}
			check("record", i, err)
			byRecord++
		}
		if waitsBusily(round) {
			threads, err := o.Threads(t.Context())
			require.NoError(t, err)
			for _, thread := range threads {
				if s := thread.Span; s != nil {
					i, err := idOf(s.TraceID, s.SpanID)
					check("thread", i, err)
					require.True(t, s.Proven)
					byThread++
				}
			}
		}
		ended = int(round)*perRound - lockstepWorkers
	}
	t.Logf("%d spans ended; roots were found %d times by slots, %d by records, %d by threads; %d records of ended spans",
		ended, bySlot, byRecord, byThread, invalid)
	// Check that the reader has found spans at all.
	assert.Greater(t, bySlot, int(rounds)*lockstepWorkers/8)
	assert.Greater(t, byRecord, int(rounds)*lockstepWorkers/16)
	assert.Positive(t, byThread)
	assert.Positive(t, invalid)
	c.Done()
}
