// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader_test

import (
	"net"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
)

// ownCode describes the code of the program that runs the test, without inlined calls.
type ownCode struct{}

// Frame implements [reader.GoCode]. It does not know sizes, except that of a function that has just been called.
func (ownCode) Frame(pc uint64) (function string, size int, ok bool) {
	f := runtime.FuncForPC(uintptr(pc))
	if f == nil {
		return "", 0, false
	}
	if f.Entry() != uintptr(pc) {
		size = 8
	}
	return runtime.FuncForPC(f.Entry()).Name(), size, true
}

// waiter is a goroutine that waits, and what it waits for.
type waiter struct {
	id       uint64
	creator  uint64
	lock     uint64   // the lock
	channels []uint64 // the channels
	buffered uint64   // of the first channel
	capacity uint64
	fd       int
	writing  bool
	unknown  bool // It is not known what it waits for.
}

func functionOf(pc uint64) string {
	name, _, _ := ownCode{}.Frame(pc)
	return name
}

func goroutineID() uint64 {
	b := make([]byte, 64)
	b = b[:runtime.Stack(b, false)]
	id, _ := strconv.ParseUint(strings.Fields(string(b))[1], 10, 64)
	return id
}

func address[T any](p *T) uint64 { return uint64(reflect.ValueOf(p).Pointer()) }

// TestWaits checks what Goroutines says about the objects that goroutines wait for, and about who started them.
func TestWaits(t *testing.T) {
	tp, p := publishing(t)

	var mu sync.Mutex // guards want
	want := map[uint64]waiter{}
	var waiting sync.WaitGroup
	defer waiting.Wait()
	start := func(w waiter, wait func()) {
		started := make(chan struct{})
		creator := goroutineID()
		waiting.Go(func() {
			w.id, w.creator = goroutineID(), creator
			mu.Lock()
			want[w.id] = w
			mu.Unlock()
			close(started)
			wait()
		})
		<-started
	}
	end := make(chan struct{})
	const each = 20
	type locks struct {
		_       int
		mutex   sync.Mutex
		readers sync.RWMutex // held for writing
		writers sync.RWMutex // held for reading
		group   sync.WaitGroup
	}
	var all []*locks
	for range each {
		l := new(locks)
		all = append(all, l)
		l.mutex.Lock()
		l.readers.Lock()
		l.writers.RLock()
		l.group.Add(1)
		for range 2 {
			start(waiter{lock: address(&l.mutex)}, func() { l.mutex.Lock(); l.mutex.Unlock() }) //nolint:staticcheck // SA2001: it waits
			start(waiter{lock: address(&l.readers)}, func() { l.readers.RLock(); defer l.readers.RUnlock() })
			start(waiter{lock: address(&l.writers)}, func() { l.writers.Lock(); defer l.writers.Unlock() })
			start(waiter{lock: 1}, l.group.Wait)
		}
	}
	for n := range uint64(each) {
		c, other, never := make(chan int), make(chan int), make(chan int)
		full := make(chan string, n+1)
		for range n + 1 {
			full <- ""
		}
		chans := func(all ...any) (a []uint64) {
			for _, c := range all {
				a = append(a, uint64(reflect.ValueOf(c).Pointer()))
			}
			return a
		}
		for range 2 {
			start(waiter{channels: chans(c)}, func() { <-c })
			start(waiter{channels: chans(full), buffered: n + 1, capacity: n + 1}, func() { full <- "" })
			start(waiter{channels: chans(c, other, never, end)}, func() {
				select {
				case <-c:
				case <-other:
				case never <- 1:
				case <-end:
				}
			})
		}
		defer func() {
			close(c)
			for range 2 {
				<-full
			}
		}()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	for range each {
		conn, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		raw, err := conn.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		fd := 0
		require.NoError(t, raw.Control(func(f uintptr) { fd = int(f) }))
		start(waiter{fd: fd}, func() { _, _ = conn.Read(make([]byte, 1)) })
		start(waiter{fd: fd, writing: true}, func() {
			for {
				if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		})
		defer func() { _ = conn.Close() }()
	}
	start(waiter{unknown: true}, func() {
		select {
		case <-end:
		case <-(chan int)(nil):
		}
	})
	defer func() {
		close(end)
		for _, l := range all {
			l.mutex.Unlock()
			l.readers.Unlock()
			l.writers.RUnlock()
			l.group.Done()
		}
	}()
	_, span := tp.Tracer("").Start(t.Context(), "publishes")
	defer span.End()

	var found map[uint64]reader.Goroutine
	require.Eventually(t, func() bool {
		refs, err := p.AllGoroutines(t.Context())
		require.NoError(t, err)
		read, err := p.Goroutines(t.Context(), refs, reader.GoroutineOptions{Stacks: true, Details: true, Code: ownCode{}})
		require.NoError(t, err)
		found = map[uint64]reader.Goroutine{}
		settled := 0
		for _, g := range read.Goroutines {
			if _, ok := want[g.ID]; ok && g.State == reader.GoroutineWaiting {
				found[g.ID] = g
				settled++
			}
		}
		return settled == len(want)
	}, testenv.Patience, 1)
	groups := map[uint64]uint64{} // the lock of a WaitGroup by goroutine
	right, none := 0, 0
	for id, w := range want {
		g := found[id]
		assert.Equal(t, w.creator, g.Creator)
		assert.Equal(t, "sync.(*WaitGroup).Go", functionOf(g.CreatedAt))
		require.Equal(t, "sync.(*WaitGroup).Go.func1", functionOf(g.Entry))
		assert.Equal(t, uint64(runtime.FuncForPC(uintptr(g.Entry)).Entry()), g.Entry)
		if w.unknown || reflect.DeepEqual(g.Wait, reader.Wait{}) {
			t.Log("none:", g.WaitReason)
			none++
			continue
		}
		switch {
		case w.lock == 1:
			assert.NotZero(t, g.Wait.Lock)
			groups[id] = g.Wait.Lock
		case w.lock != 0:
			assert.Equal(t, w.lock, g.Wait.Lock, g.WaitReason)
		case w.channels != nil:
			var channels []uint64
			for _, c := range g.Wait.Channels {
				channels = append(channels, c.Address)
			}
			assert.ElementsMatch(t, w.channels, channels)
			assert.Equal(t, []uint64{w.buffered, w.capacity}, []uint64{g.Wait.Channels[0].Buffered, g.Wait.Channels[0].Capacity})
		default:
			assert.True(t, g.Wait.Polled)
			assert.Equal(t, w.fd, g.Wait.Descriptor)
			assert.Equal(t, w.writing, g.Wait.Writing)
		}
		right++
	}
	counts := map[uint64]int{}
	for _, lock := range groups {
		counts[lock]++
	}
	assert.Len(t, counts, each)
	assert.LessOrEqual(t, none, 1)
	t.Logf("%s: %d right, %d unknown", runtime.Version(), right, none)
}
