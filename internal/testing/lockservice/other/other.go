// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package other locks and unlocks for lockservice, as packages of helpers do.
package other

import "sync"

// Lock locks a mutex.
//
//go:noinline
func Lock(m *sync.Mutex) { m.Lock() }

// Unlock unlocks a mutex.
//
//go:noinline
func Unlock(m *sync.Mutex) { m.Unlock() }

// Without releases l, calls f, and acquires l again.
//
//go:noinline
func Without(l sync.Locker, f func()) {
	l.Unlock()
	defer l.Lock()
	f()
}
