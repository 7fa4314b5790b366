// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"net"
	"sync"
)

func newShop() *shop { return &shop{stock: map[string]int{}, other: new(sync.Mutex)} }

// inShop is a way to hold the mutex of a shop.
func inShop(f func(*shop, *use)) func(u *use) func() {
	return func(u *use) func() {
		s := newShop()
		go f(s, u)
		return s.mu.Lock
	}
}

func withMutex(f func(*sync.Mutex, *use)) func(u *use) func() {
	return func(u *use) func() {
		m := new(sync.Mutex)
		go f(m, u)
		return m.Lock
	}
}

// trap is a way in which f lingers, and then another goroutine holds the mutex of the shop.
func trap(f func(*shop, *use)) func(u *use) func() {
	return func(u *use) func() {
		s := newShop()
		go f(s, u)
		u.lingers()
		go s.deferred(u)
		return s.mu.Lock
	}
}

// quietTrap is like trap, but the holder leaves no trace.
func quietTrap(f func(*shop, *use)) func(u *use) func() {
	return func(u *use) func() {
		s := newShop()
		return u.quiet(&s.mu, func() { f(s, u) })
	}
}

// quiet starts f, which lingers, and lets another goroutine hold the lock, which leaves no trace.
func (u *use) quiet(l sync.Locker, f func()) (wait func()) {
	go f()
	u.lingers()
	l.Lock()
	go u.park()
	return l.Lock
}

// lingers waits until another goroutine lingers.
func (u *use) lingers() { <-u.other }

func ways() []way {
	pair := func(f func(a, b *sync.Mutex, u *use), second bool) func(u *use) func() {
		return func(u *use) func() {
			a, b := new(sync.Mutex), new(sync.Mutex)
			go f(a, b, u)
			if second {
				return b.Lock
			}
			return a.Lock
		}
	}
	ofThree := func(n int) func(u *use) func() {
		return func(u *use) func() {
			locks := []*sync.Mutex{new(sync.Mutex), new(sync.Mutex), new(sync.Mutex)}
			go all(locks, u)
			return locks[n].Lock
		}
	}
	mapped := func(f func(locks map[string]*sync.Mutex, key string, u *use)) func(u *use) func() {
		return func(u *use) func() {
			m := map[string]*sync.Mutex{"a": new(sync.Mutex), "b": new(sync.Mutex)}
			go f(m, "b", u)
			return m["b"].Lock
		}
	}
	// f knows a lock that another goroutine holds without a trace.
	known := func(f func(s *shop, m *sync.Mutex, u *use)) func(u *use) func() {
		return func(u *use) func() {
			m := new(sync.Mutex)
			m.Lock()
			go f(newShop(), m, u)
			u.lingers()
			go u.park()
			return m.Lock
		}
	}
	return []way{
		{name: "plain", hold: inShop((*shop).plain)},
		{name: "deferred", hold: inShop((*shop).deferred)},
		{name: "pointer", hold: func(u *use) func() { s := newShop(); go s.pointed(u); return s.other.Lock }},
		{name: "RWMutex written", hold: func(u *use) func() { s := newShop(); go s.write(u); return s.rw.Lock }},
		{name: "RWMutex written, readers wait", hold: func(u *use) func() { s := newShop(); go s.writeDeferred(u); return s.rw.RLock }},
		{name: "RWMutex read", hold: func(u *use) func() { s := newShop(); go s.read(u); return s.rw.Lock }},
		{name: "RWMutex read, deferred", hold: func(u *use) func() { s := newShop(); go s.readDeferred(u); return s.rw.Lock }},
		{name: "RWMutex read by one, a writer and a reader wait", hold: func(u *use) func() {
			s := newShop()
			n := make(chan bool, 1)
			go s.readDeferred(u)
			return func() {
				select {
				case n <- true:
					s.rw.Lock()
				default:
					s.forReading()
				}
			}
		}},
		{name: "RWMutex read by two", several: true, hold: func(u *use) func() {
			s := newShop()
			go s.readDeferred(u)
			go func() { s.rw.RLock(); u.linger(); s.rw.RUnlock() }()
			return s.rw.Lock
		}, others: 1},
		{name: "nested, inner", hold: pair(nested, true)},
		{name: "nested, outer", hold: pair(nested, false)},
		{name: "nested and deferred, inner", hold: pair(nestedDeferred, true)},
		{name: "nested and deferred, outer", hold: pair(nestedDeferred, false)},
		{name: "nested in deferred, inner", hold: pair(nestedMixed, true)},
		{name: "nested in deferred, outer", hold: pair(nestedMixed, false)},
		{name: "inner released", hold: pair(innerReleased, false)},
		{name: "embedded", hold: func(u *use) func() { e := new(embedded); go embeddedPlain(e, u); return e.Lock }},
		{name: "embedded, deferred", hold: func(u *use) func() { e := new(embedded); go embeddedDeferred(e, u); return e.Lock }},
		{name: "embedded RWMutex read", hold: func(u *use) func() { e := new(embeddedRW); go embeddedRead(e, u); return e.Lock }},
		{name: "embedded RWMutex written", hold: func(u *use) func() { e := new(embeddedRW); go embeddedWrite(e, u); return e.Lock }},
		{name: "global", hold: func(u *use) func() { go global(u); return globalMutex.Lock }},
		{name: "global, deferred", hold: func(u *use) func() { go globalWithDefer(u); return globalDeferred.Lock }},
		{name: "global RWMutex written", hold: func(u *use) func() { go globalWrite(u); return globalRW.RLock }},
		{name: "branches", hold: inShop(func(s *shop, u *use) { _ = s.branches(u, 3) })},
		{name: "loop", hold: inShop((*shop).looping)},
		{name: "switch", hold: inShop(func(s *shop, u *use) { s.switches("two", u) })},
		{name: "three deferred calls", hold: inShop((*shop).threeDefers)},
		{name: "ten deferred calls", hold: inShop((*shop).manyDefers)},
		{name: "deferred in a loop, first", hold: ofThree(0)},
		{name: "deferred in a loop, last", hold: ofThree(2)},
		{name: "each of several", hold: func(u *use) func() {
			shops := []*shop{newShop(), newShop(), newShop(), newShop()}
			go each(shops, u)
			return shops[2].mu.Lock
		}},
		{name: "body of a range function", hold: inShop((*shop).ranging)},
		{name: "generic type", hold: func(u *use) func() { c := new(cache[string, int]); go c.get("", u); return c.mu.Lock }},
		{name: "generic type, plain", hold: func(u *use) func() { c := new(cache[int, string]); go c.plain(1, u); return c.mu.Lock }},
		{name: "generic function", hold: withMutex(lockDeferred[*sync.Mutex]), unknown: true},
		{name: "interface", hold: withMutex(func(m *sync.Mutex, u *use) { anyLocker(m, u) }), unknown: true},
		{name: "interface, plain", hold: withMutex(func(m *sync.Mutex, u *use) { anyLockerPlain(m, u) }), unknown: true},
		{name: "method value", hold: withMutex(methodValue)},
		{name: "method value called", hold: withMutex(func(m *sync.Mutex, u *use) { methodValueCalled(m, u, m.Unlock) }), unknown: true},
		{name: "function value", hold: withMutex(functionValue)},
		{name: "closure with its own mutex", hold: withMutex(func(m *sync.Mutex, u *use) {
			m.Lock()
			defer func() { m.Unlock() }()
			u.park()
		})},
		{name: "closure that does more", hold: withMutex(func(m *sync.Mutex, u *use) {
			m.Lock()
			n := 0
			defer func() {
				if n++; maybe() {
					println(n)
				}
				m.Unlock()
			}()
			u.park()
		})},
		{name: "closure called", hold: inShop(func(s *shop, u *use) { s.with(u.park) })},
		{name: "closure called, deferred", hold: inShop(func(s *shop, u *use) { s.withDeferred(u.park) })},
		{name: "recursion", hold: inShop((*shop).calls)},
		{name: "array", hold: func(u *use) func() { a := new([8]sync.Mutex); go array(a, 5, u); return a[5].Lock }},
		{name: "array, deferred", hold: func(u *use) func() { a := new([8]sync.Mutex); go arrayDeferred(a, 6, u); return a[6].Lock }},
		{name: "map", hold: mapped(inMap)},
		{name: "map, plain", hold: mapped(inMapPlain), unknown: true},
		{name: "deep in a struct", hold: func(u *use) func() { d := new(deep); go deepInside(d, u); return d.inner.mu.Lock }},
		{name: "deep in a struct, deferred", hold: func(u *use) func() { d := new(deep); go deepDeferred(d, u); return d.inner.mu.Lock }},
		{name: "helpers", hold: inShop(func(s *shop, u *use) { s.lock(); u.park(); s.unlock() })},
		{name: "helpers, deferred", hold: inShop(func(s *shop, u *use) { s.lock(); defer s.unlock(); u.park() })},
		{name: "helper locks", hold: inShop(func(s *shop, u *use) { s.lock(); defer s.mu.Unlock(); u.park() })},
		{name: "helper returns Unlock", hold: inShop(func(s *shop, u *use) { defer s.lockAndReturn()(); u.park() })},
		{name: "helper returns a closure", hold: withMutex(func(m *sync.Mutex, u *use) { defer lockAny(m)(); u.park() })},
		{name: "helper with locks of its own", hold: inShop((*shop).callsBalanced)},
		{name: "TryLock", hold: inShop((*shop).tried)},
		{name: "TryLock, plain", hold: inShop((*shop).triedPlain), unknown: true},
		{name: "sync.Once", hold: func(u *use) func() {
			once := new(sync.Once)
			go once.Do(u.park)
			return func() { once.Do(func() {}) }
		}},
		{name: "panicking", hold: inShop((*shop).panicking)},
		{name: "panicking below", hold: inShop((*shop).panickingBelow)},
		{name: "recovered below", hold: inShop((*shop).recoveredHolding)},
		{name: "in a select", hold: inShop(func(s *shop, u *use) { s.selects(u, make(chan int)) })},
		{name: "sleeping", hold: inShop((*shop).sleeps)},
		{name: "in a system call", hold: inShop((*shop).readsPipe)},
		{name: "on a connection", hold: func(u *use) func() {
			s := newShop()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				panic(err)
			}
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				panic(err)
			}
			go s.reads(u, c)
			return s.mu.Lock
		}},
		{name: "in an HTTP request", hold: func(u *use) func() {
			s := newShop()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				panic(err)
			}
			go s.requests(u, "http://"+l.Addr().String())
			return s.mu.Lock
		}},
		{name: "for another lock", blocked: true, hold: func(u *use) func() {
			a, b := newShop(), newShop()
			b.mu.Lock()
			go transfer(a, b, u)
			return a.mu.Lock
		}},
		{name: "deadlock", blocked: true, hold: func(u *use) func() {
			a, b := newShop(), newShop()
			go transfer(b, a, &use{held: make(chan uint64, 1)})
			go transfer(a, b, u)
			return a.mu.Lock
		}},
		{name: "deadlock, plain", blocked: true, hold: func(u *use) func() {
			a, b := newShop(), newShop()
			meet := make(chan int)
			go transferPlain(b, a, &use{held: make(chan uint64, 1)}, meet)
			go transferPlain(a, b, u, meet)
			return a.mu.Lock
		}},
		{name: "waits for itself", hold: inShop((*shop).twice), blocked: true, unknown: true},

		{name: "released early", hold: trap((*shop).early)},
		{name: "released early, nobody", hold: quietTrap((*shop).early), unknown: true},
		{name: "released for a while", hold: trap((*shop).awhile)},
		{name: "released for a while, nobody", hold: quietTrap((*shop).awhile), unknown: true},
		{name: "released for a while by a helper", hold: trap((*shop).awhileByHelper)},
		{name: "released for a while by a helper, nobody", hold: quietTrap((*shop).awhileByHelper), unknown: true},
		{name: "released for a while below", hold: trap((*shop).awhileBelow)},
		{name: "released for a while below, nobody", hold: quietTrap((*shop).awhileBelow), unknown: true},
		{name: "released for a while by an interface", hold: quietTrap(func(s *shop, u *use) { s.awhileByInterface(&s.mu, u) }), unknown: true},
		{name: "released for a while, plain", hold: quietTrap((*shop).awhilePlain), unknown: true},
		{name: "released for a while in a loop", hold: quietTrap((*shop).awhileLoop), unknown: true},
		{name: "released in the first round", hold: quietTrap(func(s *shop, u *use) { s.firstOnly(u, 3) }), unknown: true},
		{name: "released, with a flag", hold: quietTrap((*shop).flag), unknown: true},
		{name: "released by a helper, with a flag", hold: quietTrap((*shop).flagByHelper), unknown: true},
		{name: "deferred before it is locked", hold: quietTrap((*shop).deferredFirst), unknown: true},
		{name: "TryLock in vain", hold: known(triedInVain), unknown: true},
		{name: "recovered and released", hold: quietTrap((*shop).recovered), unknown: true},
		{name: "handed over", hold: func(u *use) func() { s := newShop(); go s.handed(u); return s.mu.Lock }, others: 1, unknown: true},
		{name: "handed over, with a flag", hold: func(u *use) func() { s := newShop(); go s.handedFlag(u); return s.mu.Lock }, others: 1, unknown: true},
		{name: "handed over, plain", hold: func(u *use) func() { s := newShop(); go s.handedPlain(u); return s.mu.Lock }, others: 1, unknown: true},
		{name: "not yet handed over", hold: quietTrap(func(s *shop, u *use) { s.receives(make(chan int), u) }), unknown: true},
		{name: "knows another lock", hold: known((*shop).knows), unknown: true},
		{name: "knows another lock, plain", hold: known((*shop).knowsPlain), unknown: true},
		{name: "Cond.Wait, nobody", unknown: true, hold: func(u *use) func() {
			c := sync.NewCond(new(sync.Mutex))
			return u.quiet(c.L, func() { waits(c, u) })
		}},
		{name: "Cond.Wait", hold: func(u *use) func() {
			m := new(sync.Mutex)
			c := sync.NewCond(m)
			go waits(c, u)
			u.lingers()
			go func() {
				m.Lock()
				defer m.Unlock()
				u.park()
			}()
			return m.Lock
		}},
	}
}
