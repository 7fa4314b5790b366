// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

type shop struct {
	name  string
	mu    sync.Mutex
	stock map[string]int
	rw    sync.RWMutex
	other *sync.Mutex
	jumps int
}

type embedded struct {
	sync.Mutex
	n int
}

type embeddedRW struct {
	_ int
	sync.RWMutex
}

type cache[K comparable, V any] struct {
	values map[K]V
	mu     sync.Mutex
}

type deep struct {
	_     [100]int
	inner struct {
		_  [50]string
		mu sync.Mutex
	}
}

var (
	globalMutex, globalDeferred sync.Mutex
	globalRW                    sync.RWMutex
)

//go:noinline
func (s *shop) plain(u *use) {
	s.mu.Lock()
	u.park()
	s.mu.Unlock()
}

//go:noinline
func (s *shop) deferred(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stock["a"]++
	u.park()
}

//go:noinline
func (s *shop) pointed(u *use) {
	s.other.Lock()
	u.park()
	s.other.Unlock()
}

//go:noinline
func (s *shop) write(u *use) {
	s.rw.Lock()
	u.park()
	s.rw.Unlock()
}

//go:noinline
func (s *shop) writeDeferred(u *use) {
	s.rw.Lock()
	defer s.rw.Unlock()
	u.park()
}

//go:noinline
func (s *shop) read(u *use) {
	s.rw.RLock()
	u.park()
	s.rw.RUnlock()
}

//go:noinline
func (s *shop) readDeferred(u *use) {
	s.rw.RLock()
	defer s.rw.RUnlock()
	u.park()
}

//go:noinline
func (s *shop) lock() {
	s.mu.Lock()
	s.name = "locked"
}

//go:noinline
func (s *shop) unlock() {
	s.name = "unlocked"
	s.mu.Unlock()
}

func (s *shop) lockAndReturn() func() {
	s.mu.Lock()
	return s.mu.Unlock
}

//go:noinline
func lockAny(m *sync.Mutex) func() {
	m.Lock()
	return func() {
		if maybe() {
			fmt.Println("unlocking")
		}
		m.Unlock()
	}
}

//go:noinline
func (s *shop) with(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
}

//go:noinline
func (s *shop) withDeferred(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// without lets others have the lock that its caller holds.
//
//go:noinline
func (s *shop) without(f func()) {
	s.mu.Unlock()
	defer s.mu.Lock()
	f()
}

//go:noinline
func (s *shop) balanced() int {
	s.rw.RLock()
	defer s.rw.RUnlock()
	return len(s.stock)
}

//go:noinline
func (s *shop) branches(u *use, n int) error {
	s.mu.Lock()
	if n < 0 {
		s.mu.Unlock()
		return fmt.Errorf("negative: %d", n)
	}
	for i := range n {
		if i == 10 && s.stock["b"] > 3 {
			s.mu.Unlock()
			return nil
		}
		s.stock["c"] += i
		u.park()
	}
	s.mu.Unlock()
	return nil
}

//go:noinline
func (s *shop) looping(u *use) {
	for i := 0; ; i++ {
		s.mu.Lock()
		s.stock["d"]++
		if i == 2 {
			u.park()
		}
		s.mu.Unlock()
		if i > 100 {
			return
		}
	}
}

//go:noinline
func nested(a, b *sync.Mutex, u *use) {
	a.Lock()
	b.Lock()
	u.park()
	b.Unlock()
	a.Unlock()
}

//go:noinline
func nestedDeferred(a, b *sync.Mutex, u *use) {
	a.Lock()
	defer a.Unlock()
	b.Lock()
	defer b.Unlock()
	u.park()
}

//go:noinline
func nestedMixed(a, b *sync.Mutex, u *use) {
	a.Lock()
	defer a.Unlock()
	b.Lock()
	u.park()
	b.Unlock()
}

//go:noinline
func innerReleased(a, b *sync.Mutex, u *use) {
	a.Lock()
	defer a.Unlock()
	b.Lock()
	b.Unlock()
	u.park()
}

//go:noinline
func all(locks []*sync.Mutex, u *use) {
	for _, m := range locks {
		m.Lock()
		defer m.Unlock()
	}
	u.park()
}

//go:noinline
func each(shops []*shop, u *use) {
	for i, s := range shops {
		s.mu.Lock()
		if i == 2 {
			u.park()
		}
		s.mu.Unlock()
	}
}

//go:noinline
func (c *cache[K, V]) get(k K, u *use) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	u.park()
	return c.values[k]
}

//go:noinline
func (c *cache[K, V]) plain(k K, u *use) V {
	c.mu.Lock()
	u.park()
	v := c.values[k]
	c.mu.Unlock()
	return v
}

//go:noinline
func lockDeferred[T sync.Locker](l T, u *use) {
	l.Lock()
	defer l.Unlock()
	u.park()
}

//go:noinline
func anyLocker(l sync.Locker, u *use) {
	l.Lock()
	defer l.Unlock()
	u.park()
}

//go:noinline
func anyLockerPlain(l sync.Locker, u *use) {
	l.Lock()
	u.park()
	l.Unlock()
}

//go:noinline
func (s *shop) tried(u *use) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	u.park()
}

//go:noinline
func (s *shop) triedPlain(u *use) {
	if s.mu.TryLock() {
		u.park()
		s.mu.Unlock()
	}
}

//go:noinline
func triedInVain(_ *shop, m *sync.Mutex, u *use) {
	ok := m.TryLock()
	u.linger()
	if ok {
		m.Unlock()
	}
}

//go:noinline
func recursive(s *shop, n int, u *use) int {
	if n == 0 {
		u.park()
		return 1
	}
	return recursive(s, n-1, u) + n
}

//go:noinline
func (s *shop) calls(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	recursive(s, 20, u)
}

//go:noinline
func (s *shop) flag(u *use) {
	s.mu.Lock()
	locked := true
	defer func() {
		if locked {
			s.mu.Unlock()
		}
	}()
	s.stock["e"]++
	s.mu.Unlock()
	locked = false
	u.linger()
}

//go:noinline
func (s *shop) flagByHelper(u *use) {
	s.mu.Lock()
	locked := true
	defer func() {
		if locked {
			s.mu.Unlock()
		}
	}()
	s.unlock()
	locked = false
	u.linger()
}

// handed lets another goroutine unlock.
//
//go:noinline
func (s *shop) handed(u *use) {
	s.mu.Lock()
	go func() {
		defer s.mu.Unlock()
		u.park()
	}()
	u.linger()
}

// handedFlag lets another goroutine unlock, and would unlock itself otherwise.
//
//go:noinline
func (s *shop) handedFlag(u *use) {
	s.mu.Lock()
	handed := false
	defer func() {
		if !handed {
			s.mu.Unlock()
		}
	}()
	handed = true
	go func() {
		u.park()
		s.mu.Unlock()
	}()
	u.linger()
}

//go:noinline
func (s *shop) handedPlain(u *use) {
	s.mu.Lock()
	handed := !maybe()
	if handed {
		go func() {
			u.park()
			s.mu.Unlock()
		}()
	}
	u.linger()
	if !handed {
		s.mu.Unlock()
	}
}

//go:noinline
func (s *shop) receives(c chan int, u *use) {
	u.linger()
	s.mu.Unlock() // handed over by another goroutine
}

//go:noinline
func (s *shop) early(u *use) {
	s.mu.Lock()
	s.stock["f"]++
	s.mu.Unlock()
	u.linger()
	s.mu.Lock()
	s.stock["f"]--
	s.mu.Unlock()
}

//go:noinline
func (s *shop) awhile(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.Unlock()
	u.linger()
	s.mu.Lock()
}

//go:noinline
func (s *shop) awhileByHelper(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlock()
	u.linger()
	s.lock()
}

//go:noinline
func (s *shop) awhileBelow(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.without(u.linger)
}

//go:noinline
func (s *shop) awhileByInterface(l sync.Locker, u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.Unlock()
	u.linger()
	l.Lock()
}

//go:noinline
func (s *shop) awhilePlain(u *use) {
	s.mu.Lock()
	s.stock["g"]++
	s.mu.Unlock()
	u.linger()
	s.mu.Lock()
	s.stock["g"]++
	s.mu.Unlock()
}

//go:noinline
func (s *shop) awhileLoop(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.stock["never"] == 0 {
		s.mu.Unlock()
		u.linger()
		s.mu.Lock()
	}
}

//go:noinline
func (s *shop) firstOnly(u *use, n int) {
	s.mu.Lock()
	for i := range n {
		if i > 0 {
			u.linger()
		}
		if i == 0 {
			s.mu.Unlock()
		}
	}
}

//go:noinline
func (s *shop) deferredFirst(u *use) {
	defer s.mu.Unlock()
	u.linger()
	s.mu.Lock()
}

//go:noinline
func (s *shop) knows(m *sync.Mutex, u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.linger()
	m.Lock()
	m.Unlock()
}

//go:noinline
func (s *shop) knowsPlain(m *sync.Mutex, u *use) {
	s.mu.Lock()
	u.linger()
	s.mu.Unlock()
	_ = fmt.Sprint(m)
}

//go:noinline
func (s *shop) panics(u *use) {
	defer func() {
		_ = recover()
		u.park()
	}()
	panic(s.name)
}

//go:noinline
func (s *shop) panicking(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		_ = recover()
		u.park()
	}()
	panic("in a span")
}

//go:noinline
func (s *shop) panickingBelow(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.panics(u)
}

//go:noinline
func (s *shop) recovers() {
	defer func() { _ = recover() }()
	s.mu.Lock()
	defer s.mu.Unlock()
	panic("again")
}

//go:noinline
func (s *shop) recovered(u *use) {
	s.recovers()
	u.linger()
	s.stock["h"]++
}

//go:noinline
func (s *shop) recoveredHolding(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	func() {
		defer func() { _ = recover() }()
		panic("again")
	}()
	u.park()
}

//go:noinline
func (s *shop) manyDefers(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer fmt.Print()
	defer fmt.Print()
	defer fmt.Print()
	defer fmt.Print()
	defer fmt.Print()
	defer fmt.Print()
	defer fmt.Print()
	defer fmt.Print()
	defer fmt.Print()
	u.park()
}

//go:noinline
func (s *shop) threeDefers(u *use) {
	defer fmt.Print()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer fmt.Print(s.name)
	u.park()
}

func numbers(yield func(int) bool) {
	for i := range 3 {
		if !yield(i) {
			return
		}
	}
}

//go:noinline
func (s *shop) ranging(u *use) {
	for n := range numbers {
		s.mu.Lock()
		if n == 1 {
			u.park()
		}
		s.mu.Unlock()
	}
}

//go:noinline
func (s *shop) switches(kind string, u *use) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case "one":
		return 1
	case "two":
		u.park()
		return 2
	case "three":
		return s.balanced()
	}
	return 0
}

//go:noinline
func (s *shop) callsBalanced(u *use) {
	s.mu.Lock()
	s.stock["i"] = s.balanced()
	u.park()
	s.mu.Unlock()
}

//go:noinline
func (s *shop) selects(u *use, c chan int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.holds()
	select {
	case <-c:
	case <-never:
	}
}

//go:noinline
func (s *shop) sleeps(u *use) {
	s.mu.Lock()
	u.holds()
	time.Sleep(24 * time.Hour)
	s.mu.Unlock()
}

//go:noinline
func (s *shop) readsPipe(u *use) {
	var fds [2]int
	_ = syscall.Pipe(fds[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	u.holds()
	_, _ = syscall.Read(fds[0], make([]byte, 1))
}

//go:noinline
func (s *shop) reads(u *use, c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.holds()
	_, _ = c.Read(make([]byte, 1))
}

//go:noinline
func (s *shop) requests(u *use, url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.holds()
	if r, err := http.Get(url); err == nil { //nolint:noctx // It gets no answer.
		_ = r.Body.Close()
	}
}

//go:noinline
func transfer(a, b *shop, u *use) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u.holds()
	for !locked(&b.mu) {
		time.Sleep(time.Millisecond)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
}

//go:noinline
func transferPlain(a, b *shop, u *use, meet chan int) {
	a.mu.Lock()
	u.holds()
	select {
	case meet <- 1:
	case <-meet:
	}
	b.mu.Lock()
	a.stock["j"]--
	b.stock["j"]++
	b.mu.Unlock()
	a.mu.Unlock()
}

// locked reports whether somebody else holds a lock.
//
//go:noinline
func locked(m *sync.Mutex) bool {
	if m.TryLock() {
		m.Unlock()
		return false
	}
	return true
}

//go:noinline
func (s *shop) twice(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.holds()
	s.mu.Lock()
	defer s.mu.Unlock()
}

//go:noinline
func waits(c *sync.Cond, u *use) {
	c.L.Lock()
	defer c.L.Unlock()
	u.other <- goroutineID()
	for !maybe() {
		c.Wait()
	}
}

//go:noinline
func methodValue(m *sync.Mutex, u *use) {
	unlock := m.Unlock
	m.Lock()
	defer unlock()
	u.park()
}

//go:noinline
func methodValueCalled(m *sync.Mutex, u *use, unlock func()) {
	m.Lock()
	u.park()
	unlock()
}

//go:noinline
func functionValue(m *sync.Mutex, u *use) {
	m.Lock()
	defer (*sync.Mutex).Unlock(m)
	u.park()
}

//go:noinline
func array(locks *[8]sync.Mutex, n int, u *use) {
	locks[n].Lock()
	u.park()
	locks[n].Unlock()
}

//go:noinline
func arrayDeferred(locks *[8]sync.Mutex, n int, u *use) {
	locks[n].Lock()
	defer locks[n].Unlock()
	u.park()
}

//go:noinline
func inMap(locks map[string]*sync.Mutex, key string, u *use) {
	locks[key].Lock()
	defer locks[key].Unlock()
	u.park()
}

//go:noinline
func inMapPlain(locks map[string]*sync.Mutex, key string, u *use) {
	locks[key].Lock()
	u.park()
	locks[key].Unlock()
}

//go:noinline
func deepInside(d *deep, u *use) {
	d.inner.mu.Lock()
	u.park()
	d.inner.mu.Unlock()
}

//go:noinline
func deepDeferred(d *deep, u *use) {
	d.inner.mu.Lock()
	defer d.inner.mu.Unlock()
	u.park()
}

//go:noinline
func embeddedPlain(e *embedded, u *use) {
	e.Lock()
	e.n++
	u.park()
	e.n--
	e.Unlock()
}

//go:noinline
func embeddedDeferred(e *embedded, u *use) {
	e.Lock()
	defer e.Unlock()
	u.park()
}

//go:noinline
func embeddedRead(e *embeddedRW, u *use) {
	e.RLock()
	defer e.RUnlock()
	u.park()
}

//go:noinline
func embeddedWrite(e *embeddedRW, u *use) {
	e.Lock()
	u.park()
	e.Unlock()
}

//go:noinline
func global(u *use) {
	globalMutex.Lock()
	u.park()
	globalMutex.Unlock()
}

//go:noinline
func globalWithDefer(u *use) {
	globalDeferred.Lock()
	defer globalDeferred.Unlock()
	u.park()
}

//go:noinline
func globalWrite(u *use) {
	globalRW.Lock()
	defer globalRW.Unlock()
	u.park()
}

// forReading waits until somebody waits to write, so that readers wait.
func (s *shop) forReading() {
	s.rw.RLock()
	defer s.rw.RUnlock()
}
