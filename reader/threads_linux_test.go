// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

// relabel replaces the labels of the calling goroutine, as pprof.Do does.
func relabel() {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("mine", "only")))
}

func threadsOf(t *testing.T, p *Process) []Thread {
	t.Helper()
	threads, err := p.Threads(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, threads)
	return threads
}

// withSpans returns the threads that have a span.
func withSpans(threads []Thread) []Thread {
	var shown []Thread
	for _, t := range threads {
		if t.Span != nil {
			shown = append(shown, t)
		}
	}
	return shown
}

// proven returns the Thread that a reader must return for a goroutine in theSpan.
func proven(id identity, c CarrierKind) Thread {
	return Thread{
		TID: id.tid, OwnTID: id.tid, Goroutine: id.goid,
		Span: &ThreadSpan{
			TraceID: traceIDOf(theSpan), SpanID: spanIDOf(theSpan.SpanID), TraceFlags: 1,
			LocalRootSpanID: spanIDOf(theSpan.SpanID), Carrier: c, Proven: true,
		},
	}
}

// acting starts a child with actors and these carriers, and opens it. See startActors.
func acting(t *testing.T, carriers string) (*childproc.Child, *Process) {
	t.Helper()
	c := startActors(t, carriers)
	return c, open(t, c.PID())
}

// spinIn makes actor a publish theSpan and spin on its own thread.
func spinIn(t *testing.T, c *childproc.Child) identity {
	t.Helper()
	tellf(t, c, "lock a")
	askf(t, c, "show a")
	return askf(t, c, "spin a")
}

// steadily reads the threads many times, and fails the test unless exactly the threads in want have
// spans each time.
func steadily(t *testing.T, p *Process, want ...Thread) {
	t.Helper()
	for range 50 {
		require.Equal(t, want, withSpans(threadsOf(t, p)))
	}
}

// TestThreadsOfEachCarrier checks what the reader finds for the thread of a goroutine that starts nested spans, while
// the goroutine itself and another one end them, and after the goroutine replaces its labels. A span that another
// goroutine has ended is still in the slot, the entry and the record. The thread is then in the nearest live ancestor.
func TestThreadsOfEachCarrier(t *testing.T) {
	for carriers, kinds := range map[string][2]CarrierKind{ // with the labels of the span, and with other labels
		"slots":                        {ThreadSlots, ThreadSlots},
		"slots goroutine-table":        {GoroutineTable, GoroutineTable},
		"slots record":                 {GoroutineRecord, ThreadSlots},
		"slots goroutine-table record": {GoroutineRecord, GoroutineTable},
	} {
		t.Run(carriers, func(t *testing.T) {
			c, p := acting(t, carriers+" advertise publish")
			assert.Empty(t, withSpans(threadsOf(t, p)))
			steadily(t, p, proven(spinIn(t, c), kinds[0]))
			tellf(t, c, "nest a 1")
			tellf(t, c, "nest a 2")
			who := askf(t, c, "spin a")
			steadily(t, p, inner(who, 2, kinds[0]))
			tellf(t, c, "end-elsewhere a")
			steadily(t, p, inner(who, 1, kinds[0]))
			tellf(t, c, "end-elsewhere a")
			steadily(t, p, proven(who, kinds[0]))
			// A goroutine with other labels has no record, whatever follows these labels in memory.
			tellf(t, c, "relabel a")
			steadily(t, p, proven(askf(t, c, "spin a"), kinds[1]))
			tellf(t, c, "end a")
			who = askf(t, c, "spin a")
			for range 50 {
				threads := threadsOf(t, p)
				require.Empty(t, withSpans(threads))
				require.Contains(t, threads, Thread{TID: who.tid, OwnTID: who.tid, Goroutine: who.goid})
			}
		})
	}
}

// slotHasSpan fails the test unless the slot of a thread holds theSpan, whether or not the thread
// is still running the goroutine that published it.
func slotHasSpan(t *testing.T, p *Process, tid int) {
	t.Helper()
	v, err := p.threadView(t.Context())
	require.NoError(t, err)
	s, err := v.threadRing.Read(uint64(tid))
	require.NoError(t, err)
	require.Equal(t, spanIDOf(theSpan.SpanID), s.SpanID)
}

// waitUntilIdle waits until a thread runs no goroutine. This is necessary because an actor answers
// the order "park" just before it leaves its thread.
func waitUntilIdle(t *testing.T, p *Process, tid int) {
	t.Helper()
	for end := time.Now().Add(testenv.Patience); ; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "a goroutine stays on the thread")
		for _, thread := range threadsOf(t, p) {
			if thread.TID == tid && thread.Goroutine == 0 {
				return
			}
		}
	}
}

// TestThreadsAfterFirstExited checks that spans can be read after the first thread of the process
// has exited.
func TestThreadsAfterFirstExited(t *testing.T) {
	c, p := acting(t, "slots record advertise publish")
	tellf(t, c, "end-first-thread")
	steadily(t, p, proven(spinIn(t, c), GoroutineRecord))
}

func TestWaitingGoroutineIsOnNoThread(t *testing.T) {
	c, p := acting(t, "slots goroutine-table record advertise publish")
	tellf(t, c, "lock a")
	who := askf(t, c, "show a")
	tellf(t, c, "park a")
	waitUntilIdle(t, p, who.tid)
	steadily(t, p)
	slotHasSpan(t, p, who.tid)
	assert.Equal(t, who.goid, askf(t, c, "spin a").goid)
	require.Equal(t, []Thread{proven(who, GoroutineRecord)}, withSpans(threadsOf(t, p)))
}

func TestRecordsAreInherited(t *testing.T) {
	for carriers, inherited := range map[string]bool{"slots goroutine-table": false, "slots record": true} {
		t.Run(carriers, func(t *testing.T) {
			c, p := acting(t, carriers+" advertise publish")
			tellf(t, c, "lock a")
			self := askf(t, c, "show a")
			// The reader finds the m of the new goroutine's thread in the slot of that thread.
			who := askf(t, c, "start-known a")
			require.NotEqual(t, self.goid, who.goid)
			waitUntilIdle(t, p, self.tid)
			for range 100 {
				shown := withSpans(threadsOf(t, p))
				if !inherited {
					require.Empty(t, shown)
					continue
				}
				require.Equal(t, []Thread{proven(who, GoroutineRecord)}, shown)
			}
			tellf(t, c, "end a")
			require.Empty(t, withSpans(threadsOf(t, p)))
		})
	}
}

// TestThreadLayout checks the layout of a process against the runtime offsets of the test, which is
// the same program, and against the published formats.
func TestThreadLayout(t *testing.T) {
	c := startActors(t, "slots goroutine-table record keys=http.route+user advertise publish")
	l, err := open(t, c.PID()).ThreadLayout(t.Context())
	require.NoError(t, err)
	require.NotNil(t, l.Context)
	assert.NotZero(t, l.Context.PublishedAtNS)
	want := func(f goruntime.Fact) int {
		offset, err := goruntime.Calibrate().Offset(f)
		require.NoError(t, err)
		return int(offset)
	}
	tls, _ := goruntime.Calibrate().Offset(goruntime.TLSG)
	assert.Equal(t, RuntimeOffsets{
		GM: want(goruntime.GM), GGoid: want(goruntime.GGoid), GLabels: want(goruntime.GLabels),
		MCurg: want(goruntime.MCurg), MProcid: want(goruntime.MProcid), TLSG: tls,
	}, l.Runtime)
	kinds := map[CarrierKind]Carrier{}
	for _, carrier := range l.Carriers {
		require.NoError(t, carrier.Err)
		kinds[carrier.Kind] = carrier
	}
	fields := map[string]int{}
	for _, f := range wire.SlotFields(wire.RingLayout2) {
		fields[f.Name] = int(f.Offset)
	}
	assert.Equal(t, fields, kinds[ThreadSlots].Table.Fields)
	goroutines := kinds[GoroutineTable].Table
	assert.NotZero(t, goroutines.Address)
	assert.Equal(t, Table{
		Mapping: wire.GoroutinesName, Address: goroutines.Address, HeaderSize: wire.GoroutinesHeaderSize,
		EntrySize: wire.GoroutineEntrySize, Capacity: wire.GoroutinesCapacity, Layout: wire.GoroutinesLayout1,
	}, goroutines)
	assert.Contains(t, kinds, GoroutineRecord)
	assert.Zero(t, kinds[GoroutineRecord].Table)
	require.NotNil(t, l.Spans)
	assert.NotZero(t, l.Spans.Address)
	assert.Equal(t, []int{spantable.Capacity, wire.SpansHeaderSize, wire.CellSize}, []int{l.Spans.Capacity, l.Spans.HeaderSize, l.Spans.EntrySize})
	for _, f := range wire.CellFields() {
		assert.Equal(t, int(f.Offset), l.Spans.Fields[f.Name], f.Name)
	}
	assert.Equal(t, int(gorecord.AncestorsOffset), kinds[GoroutineRecord].Record.Ancestors)

	shown, all := l.Attributes([]byte{1, 2, 'm', 'e', 0, 1, '/'})
	assert.Equal(t, []Attribute{{"user", "me"}, {"http.route", "/"}}, shown)
	assert.True(t, all)
	shown, all = l.Attributes([]byte{2, 1, '?'})
	assert.Empty(t, shown)
	assert.False(t, all)
}

// TestThreadLayoutWithoutPublication checks that ThreadLayout succeeds if the process advertises
// nothing, and finds a ring if there is one. Without a ring, Threads must fail.
func TestThreadLayoutWithoutPublication(t *testing.T) {
	for order, source := range map[string]CarrierSource{"publish": 0, "": 0, "slots": FoundByName} {
		_, p := acting(t, order)
		l, err := p.ThreadLayout(t.Context())
		require.NoError(t, err)
		assert.Equal(t, order == "publish", l.Context != nil)
		assert.Zero(t, l.Runtime)
		if source == 0 {
			assert.Empty(t, l.Carriers)
			_, err := p.Threads(t.Context())
			require.ErrorIs(t, err, ErrNoThreadContext, order)
			require.NotErrorIs(t, err, ErrNoContext)
		} else if assert.Len(t, l.Carriers, 1) {
			assert.Equal(t, source, l.Carriers[0].Source)
			assert.Contains(t, l.Carriers[0].Table.Fields, "span_id")
		}
	}
}

// TestThreadsInOwnPIDNamespace checks that Threads returns both ids of a thread in another PID
// namespace, as in a container.
func TestThreadsInOwnPIDNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a PID namespace needs CAP_SYS_ADMIN")
	}
	c := readied(t, childproc.Start(t, "actors", func(cmd *exec.Cmd) {
		notPreempted(cmd)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	}), "slots record advertise publish")
	p := open(t, c.PID())
	who := spinIn(t, c)
	require.Less(t, who.tid, 100, "not in a PID namespace of its own")
	shown := withSpans(threadsOf(t, p))
	require.Len(t, shown, 1)
	assert.Equal(t, who.tid, shown[0].OwnTID)
	assert.NotEqual(t, who.tid, shown[0].TID)
	assert.DirExists(t, fmt.Sprintf("/proc/%d/task/%d", c.PID(), shown[0].TID))
	assert.Equal(t, proven(who, GoroutineRecord).Span, shown[0].Span)
}

// TestUnprovenSpans checks that spans are unproven if slots record no owner, or if the owner cannot
// be verified.
func TestUnprovenSpans(t *testing.T) {
	for carriers, want := range map[string]Carrier{
		"v1 advertise publish":          {Source: Advertised},
		"slots no-go advertise publish": {Source: Advertised},
		"v1 publish":                    {Source: FoundByMagic},
		"v1":                            {Source: FoundByMagic},
		"slots":                         {Source: FoundByName},
	} {
		t.Run(carriers, func(t *testing.T) {
			c, p := acting(t, carriers)
			who := spinIn(t, c)

			layout, err := p.ThreadLayout(t.Context())
			require.NoError(t, err)
			found := layout.Carriers
			require.Len(t, found, 1)
			assert.Equal(t, ThreadSlots, found[0].Kind)
			assert.False(t, found[0].Provable)
			assert.Equal(t, 1024, found[0].Table.Capacity)
			if strings.HasPrefix(carriers, "v1") && found[0].Source == FoundByName {
				found[0].Source = FoundByMagic // this kernel can name anonymous memory, so the ring also has a name
			}
			assert.Equal(t, want.Source, found[0].Source)

			span := proven(who, ThreadSlots).Span
			span.Proven = false
			if strings.HasPrefix(carriers, "v1") {
				span.TraceFlags = 0
			}
			if carriers != "slots no-go advertise publish" { // in the other cases the reader cannot find the span's cell
				span.LocalRootSpanID = [8]byte{}
			}
			steadily(t, p, Thread{TID: who.tid, OwnTID: who.tid, Span: span})
			tellf(t, c, "end a")
			askf(t, c, "spin a")
			assert.Empty(t, withSpans(threadsOf(t, p)))
		})
	}
}

func TestFindRingByName(t *testing.T) {
	_, p := acting(t, "named-v1")
	threads := threadsOf(t, p)
	assert.Len(t, withSpans(threads), len(threads), "every slot has a span")
	layout, err := p.ThreadLayout(t.Context())
	require.NoError(t, err)
	found := layout.Carriers
	require.Len(t, found, 1)
	assert.Equal(t, FoundByName, found[0].Source)
	assert.Contains(t, found[0].Table.Mapping, wire.RingName1)
}

func TestLateAdvertisement(t *testing.T) {
	c, p := acting(t, "slots publish")
	spinIn(t, c)
	shown := withSpans(threadsOf(t, p))
	require.Len(t, shown, 1)
	assert.False(t, shown[0].Span.Proven)

	tellf(t, c, "advertise-now a")
	who := askf(t, c, "spin a")
	require.Equal(t, []Thread{proven(who, ThreadSlots)}, withSpans(threadsOf(t, p)))
}

func TestThreadsOfExitedProcess(t *testing.T) {
	c, p := acting(t, "slots advertise publish")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 { // the first time nothing is cached, the second time the carriers are
		_, err := p.Threads(ctx)
		require.ErrorIs(t, err, context.Canceled)
		threadsOf(t, p)
	}
	c.Zombie()
	_, err := p.Threads(t.Context())
	require.Truef(t, errors.Is(err, ErrProcessGone) || errors.Is(err, ErrNoThreadContext), "%v", err)
	c.Kill()
	_, err = p.Threads(t.Context())
	require.ErrorIs(t, err, ErrProcessGone)
	require.NotErrorIs(t, err, ErrNoThreadContext)
}

// assertChurned checks that a span equals one that churn publishes, and returns the id of its
// goroutine.
func assertChurned(t *testing.T, traceID [16]byte, spanID, localRoot [8]byte) (goroutine uint64) {
	t.Helper()
	high := binary.BigEndian.Uint64(traceID[:])
	want := churnSpan(high>>32, high&0xffffffff)
	require.Equal(t, traceIDOf(want), traceID)
	require.Equal(t, spanIDOf(want.SpanID), spanID)
	if localRoot != [8]byte{} {
		require.Equal(t, spanID, localRoot)
	}
	return high >> 32
}

// TestProvenUnderChurn checks that proven spans and live spans are never mixtures and belong to the
// right goroutine, while goroutines start, block, change threads and exit.
func TestProvenUnderChurn(t *testing.T) {
	for carriers, kind := range map[string]CarrierKind{
		"slots": ThreadSlots, "slots goroutine-table": GoroutineTable, "slots record": GoroutineRecord,
	} {
		t.Run(carriers, func(t *testing.T) {
			c := readied(t, childproc.Start(t, "churn", nil), carriers+" advertise publish")
			p := open(t, c.PID())
			shown, ofKind, listed := 0, 0, 0
			wanted := testenv.Rounds(2000, 20_000) // no matter how long this takes on a busy machine
			for n, end := 0, time.Now().Add(testenv.Patience); ofKind < wanted && time.Now().Before(end); n++ {
				for _, thread := range withSpans(threadsOf(t, p)) {
					shown++
					if thread.Span.Carrier == kind {
						ofKind++
					}
					require.True(t, thread.Span.Proven)
					require.Equal(t, assertChurned(t, thread.Span.TraceID, thread.Span.SpanID, thread.Span.LocalRootSpanID), thread.Goroutine)
				}
				if n%4 != 0 {
					continue // each reading lists dozens of spans
				}
				for _, span := range spansOf(t, p) {
					listed++
					require.Equal(t, assertChurned(t, span.TraceID, span.SpanID, span.LocalRootSpanID), span.Starter.ID)
					require.NotZero(t, span.LocalRootSpanID)
				}
			}
			t.Logf("%d spans, %d by %v, %d listed", shown, ofKind, kind, listed)
			require.Greater(t, ofKind, 100)
			require.Greater(t, listed, 100)
		})
	}
}
