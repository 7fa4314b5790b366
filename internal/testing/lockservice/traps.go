// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"sync"

	"github.com/otelctx/otelctx/internal/testing/lockservice/other"
)

// condition is like a sync.Cond, but not known to otelctx.
type condition struct {
	L sync.Locker
}

//go:noinline
func (c *condition) wait(u *use) {
	c.L.Unlock()
	u.linger()
	c.L.Lock()
}

//go:noinline
func (s *shop) customCond(c *condition, u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.wait(u)
}

//go:noinline
func (s *shop) customCondPlain(c *condition, u *use) {
	s.mu.Lock()
	c.wait(u)
	s.stock["a"]++
	s.mu.Unlock()
}

// otherPackage calls a function of another package that releases the lock while it waits.
//
//go:noinline
func (s *shop) otherPackage(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	other.Without(&s.mu, u.linger)
}

//go:noinline
func (s *shop) helperLater(a *sync.Mutex, u *use) {
	a.Lock()
	u.linger()
	s.lock()
	s.stock["x"]++
	s.mu.Unlock()
	a.Unlock()
}

//go:noinline
func (s *shop) nestedAwhile(a *sync.Mutex, u *use) {
	a.Lock()
	defer a.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlock()
	u.linger()
	s.lock()
}

//go:noinline
func (s *shop) pause() { other.Unlock(&s.mu) }

//go:noinline
func (s *shop) resume() { other.Lock(&s.mu) }

//go:noinline
func (s *shop) pausedByOther(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause()
	u.linger()
	s.resume()
}

//go:noinline
func (s *shop) pausedByMethodValue(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call(s.mu.Unlock)
	u.linger()
	call(s.mu.Lock)
}

//go:noinline
func call(f func()) { f() }

// pausedAfterLong is like pausedByMethodValue, but has call execute long code first.
//
//go:noinline
func (s *shop) pausedAfterLong(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call(s.mu.Unlock)
	u.linger()
	call(long)
	call(s.mu.Lock)
}

var busy = newShop()

// long takes more instructions than are followed in a function that changes no number of locks.
//
//go:noinline
func long() {
	busy.lock()
	busy.unlock()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
	part()
}

//go:noinline
func part() {
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
	busy.lock()
	busy.unlock()
}

//go:noinline
func (s *shop) unlocked(f func()) {
	call(s.mu.Unlock)
	f()
	call(s.mu.Lock)
}

//go:noinline
func (s *shop) unlockedBelow(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlocked(u.linger)
}

type list struct {
	mu   sync.Mutex
	next *list
}

//go:noinline
func crab(l *list, u *use) {
	cur := l
	cur.mu.Lock()
	defer func() { cur.mu.Unlock() }()
	for cur.next != nil {
		next := cur.next
		next.mu.Lock()
		cur.mu.Unlock()
		u.linger()
		cur = next
	}
}

//go:noinline
func crabPlain(l *list, u *use) {
	cur := l
	cur.mu.Lock()
	for cur.next != nil {
		next := cur.next
		next.mu.Lock()
		cur.mu.Unlock()
		cur = next
		u.linger()
	}
	cur.mu.Unlock()
}

//go:noinline
func swap(a, b *list, u *use) {
	m := a
	m.mu.Lock()
	defer func() { m.mu.Unlock() }()
	b.mu.Lock()
	m, b = b, m
	b.mu.Unlock()
	u.linger()
}

//go:noinline
func (s *shop) inMapLater(locks map[string]*sync.Mutex, m, a *sync.Mutex, u *use) {
	a.Lock()
	u.linger()
	locks["b"].Lock()
	s.stock["y"]++
	m.Unlock()
	a.Unlock()
}

//go:noinline
func (s *shop) tryThenHelper(u *use) {
	defer s.mu.Unlock()
	if !s.mu.TryLock() {
		u.linger()
		s.lock()
	}
}

//go:noinline
func (s *shop) deferredEarlyHelper(a *sync.Mutex, u *use) {
	a.Lock()
	defer s.mu.Unlock()
	u.linger()
	s.lock()
	a.Unlock()
}

type (
	unlocker interface{ unlock() }
	locker   interface{ lock() }
)

//go:noinline
func (s *shop) byUserInterface(l locker, x unlocker, u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.unlock()
	u.linger()
	l.lock()
}

//go:noinline
func (s *shop) byUserInterfacePlain(l locker, x unlocker, u *use) {
	s.mu.Lock()
	x.unlock()
	u.linger()
	l.lock()
	s.mu.Unlock()
}

//go:noinline
func withoutLock(l sync.Locker, f func()) {
	l.Unlock()
	defer l.Lock()
	f()
}

//go:noinline
func (s *shop) withoutLocker(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	withoutLock(&s.mu, u.linger)
}

//go:noinline
func (s *shop) upgrade(u *use) {
	s.rw.RLock()
	n := len(s.stock)
	s.rw.RUnlock()
	u.linger()
	if n == 0 {
		s.rw.Lock()
		s.stock["a"] = 1
		s.rw.Unlock()
	}
}

//go:noinline
func (s *shop) upgradeFlag(u *use, write bool) {
	s.rw.RLock()
	unlock := s.rw.RUnlock
	if write {
		s.rw.RUnlock()
		u.linger()
		s.rw.Lock()
		unlock = s.rw.Unlock
	}
	defer unlock()
	s.stock["a"]++
}

//go:noinline
func (s *shop) condShared(u *use, c *sync.Cond) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !maybe() {
		waitFor(u, c)
	}
}

//go:noinline
func waitFor(u *use, c *sync.Cond) {
	u.other <- goroutineID()
	c.Wait()
}

//go:noinline
func (s *shop) readCond(c *condition, u *use) {
	s.rw.RLock()
	defer s.rw.RUnlock()
	c.wait(u)
}

//go:noinline
func embeddedCond(e *embeddedRW, c *condition, u *use) {
	e.Lock()
	defer e.Unlock()
	c.wait(u)
}

//go:noinline
func (s *shop) triesLater(a *sync.Mutex, u *use) {
	a.Lock()
	u.park()
	if s.mu.TryLock() {
		s.mu.Unlock()
	}
	a.Unlock()
}

//go:noinline
func (s *shop) heldAndReleased(a *sync.Mutex, locks map[string]*sync.Mutex, u *use) {
	locks["b"].Lock()
	defer s.mu.Unlock()
	locks["b"].Unlock()
	a.Lock()
	u.linger()
	a.Unlock()
	locks["b"].Lock()
}

// jump is inlined, and jumps through a table, beyond which otelctx does not follow the code.
func (s *shop) jump(kind int) bool {
	switch kind {
	case 0:
		s.jumps++
	case 1:
		s.jumps += 2
	case 2:
		s.jumps += 3
	case 3:
		s.jumps += 4
	case 4:
		s.jumps += 5
	case 5:
		s.jumps += 6
	case 6:
		s.jumps += 7
	case 7:
		s.jumps += 8
	default:
		return false
	}
	return true
}

//go:noinline
func (s *shop) lockOrUnlock(kind int, lock bool) {
	if !s.jump(kind) {
		return
	}
	if lock {
		s.mu.Lock()
	} else {
		s.mu.Unlock()
	}
}

// lockOrUnlockRW is the same for a lock whose methods are called, because they are too long to be inlined.
//
//go:noinline
func (s *shop) lockOrUnlockRW(kind int, lock bool) {
	if !s.jump(kind) {
		return
	}
	if lock {
		s.rw.Lock()
	} else {
		s.rw.Unlock()
	}
}

//go:noinline
func (s *shop) pausedBeyondTable(u *use) {
	s.mu.Lock()
	s.lockOrUnlock(len(s.stock)%8, false)
	u.linger()
	s.lockOrUnlock(len(s.stock)%8, true)
	s.stock["a"]++
	s.mu.Unlock()
}

//go:noinline
func (s *shop) pausedBeyondTableRW(u *use) {
	s.rw.Lock()
	s.lockOrUnlockRW(len(s.stock)%8, false)
	u.linger()
	s.lockOrUnlockRW(len(s.stock)%8, true)
	s.stock["a"]++
	s.rw.Unlock()
}

// moreTraps are cases in which a goroutine that does not hold the lock looks like its holder.
func moreTraps() []way {
	quietOn := func(f func(s *shop, a *sync.Mutex, u *use)) func(u *use) func() {
		return quietTrap(func(s *shop, u *use) { f(s, new(sync.Mutex), u) })
	}
	quietRW := func(f func(*shop, *use)) func(u *use) func() {
		return func(u *use) func() {
			s := newShop()
			return u.quiet(&s.rw, func() { f(s, u) })
		}
	}
	return []way{
		{name: "condition of its own", hold: quietTrap(func(s *shop, u *use) { s.customCond(&condition{L: &s.mu}, u) }), unknown: true},
		{name: "condition of its own, plain", hold: quietTrap(func(s *shop, u *use) { s.customCondPlain(&condition{L: &s.mu}, u) }), unknown: true},
		{name: "released for a while by another package", hold: quietTrap((*shop).otherPackage), unknown: true},
		{name: "locked by a helper later", hold: quietOn((*shop).helperLater), unknown: true},
		{name: "released for a while by a helper, with another lock", hold: quietOn((*shop).nestedAwhile), unknown: true},
		{name: "released for a while by a helper of a helper", hold: quietTrap((*shop).pausedByOther), unknown: true},
		{name: "released for a while by method values", hold: quietTrap((*shop).pausedByMethodValue), unknown: true},
		{name: "released for a while by method values, after long code", hold: quietTrap((*shop).pausedAfterLong), unknown: true},
		{name: "released for a while below by method values", hold: quietTrap((*shop).unlockedBelow), unknown: true},
		{name: "released for a while by a helper with a jump table", hold: quietTrap((*shop).pausedBeyondTable), unknown: true},
		{name: "RWMutex, released for a while by a helper with a jump table", hold: quietRW((*shop).pausedBeyondTableRW), unknown: true},
		{name: "hand over hand", unknown: true, hold: func(u *use) func() {
			l := &list{next: &list{}}
			return u.quiet(&l.mu, func() { crab(l, u) })
		}},
		{name: "hand over hand, plain", unknown: true, hold: func(u *use) func() {
			l := &list{next: &list{}}
			return u.quiet(&l.mu, func() { crabPlain(l, u) })
		}},
		{name: "deferred for another lock", unknown: true, hold: func(u *use) func() {
			a, b := new(list), new(list)
			return u.quiet(&a.mu, func() { swap(a, b, u) })
		}},
		{name: "in a map, locked later", unknown: true, hold: func(u *use) func() {
			m := new(sync.Mutex)
			return u.quiet(m, func() { newShop().inMapLater(map[string]*sync.Mutex{"b": m}, m, new(sync.Mutex), u) })
		}},
		{name: "TryLock, locked by a helper later", unknown: true, hold: func(u *use) func() {
			s := newShop()
			s.mu.Lock()
			go s.tryThenHelper(u)
			u.lingers()
			go u.park()
			return s.mu.Lock
		}},
		{name: "deferred before a helper locks it", hold: quietOn((*shop).deferredEarlyHelper), unknown: true},
		{name: "released for a while by an interface of its own", hold: quietTrap(func(s *shop, u *use) { s.byUserInterface(s, s, u) }), unknown: true},
		{name: "released for a while by an interface of its own, plain", hold: quietTrap(func(s *shop, u *use) { s.byUserInterfacePlain(s, s, u) }), unknown: true},
		{name: "released for a while below by an interface", hold: quietTrap((*shop).withoutLocker), unknown: true},
		{name: "TryLock of another lock later", hold: func(u *use) func() { a := new(sync.Mutex); go newShop().triesLater(a, u); return a.Lock }},
		{name: "deferred, but released, with another lock", unknown: true, hold: quietOn(func(s *shop, a *sync.Mutex, u *use) {
			s.heldAndReleased(a, map[string]*sync.Mutex{"b": &s.mu}, u)
		})},
		{name: "condition with RLocker", unknown: true, hold: func(u *use) func() {
			s := newShop()
			go s.readCond(&condition{L: s.rw.RLocker()}, u)
			u.lingers()
			s.rw.RLock()
			go u.park()
			return s.rw.Lock
		}},
		{name: "condition with an embedded RWMutex", unknown: true, hold: func(u *use) func() {
			e := new(embeddedRW)
			return u.quiet(e, func() { embeddedCond(e, &condition{L: e}, u) })
		}},
		{name: "RWMutex read, written later", hold: quietRW((*shop).upgrade), unknown: true},
		{name: "RWMutex read, then written", hold: quietRW(func(s *shop, u *use) { s.upgradeFlag(u, true) }), unknown: true},
		{name: "Cond.Wait below", hold: quietTrap(func(s *shop, u *use) { s.condShared(u, sync.NewCond(&s.mu)) }), unknown: true},
	}
}
