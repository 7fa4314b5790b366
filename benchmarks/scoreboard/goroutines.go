// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"sync"
	"time"
)

// seen is a sample taken by an observer: the number on its stack, the span that the observer gives for it, and the
// kind of wait, which is empty if it is unknown.
type seen struct {
	Number uint64
	Given  id
	Wait   string
}

// watcher continuously takes goroutine profiles of this process.
type watcher struct {
	end, ended chan struct{}

	mu   sync.Mutex
	seen map[seen]int
	// now is the number of samples of the current pattern in the current round. about identifies both.
	now   int
	about string
}

func newWatcher() *watcher {
	w := &watcher{end: make(chan struct{}), ended: make(chan struct{}), seen: map[seen]int{}}
	go func() {
		defer close(w.ended)
		var profile bytes.Buffer
		for {
			select {
			case <-w.end:
				return
			case <-time.After(200 * time.Microsecond):
			}
			profile.Reset()
			must(pprof.Lookup("goroutine").WriteTo(&profile, 0))
			w.add(check(readProfile(profile.Bytes(), 0)))
		}
	}()
	return w
}

func (w *watcher) stop() {
	close(w.end)
	<-w.ended
}

func (w *watcher) enough(pattern string, round, rounds int) bool {
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if current := fmt.Sprint(pattern, round); w.about != current {
		w.about, w.now = current, 0
	}
	return w.now > wanted/rounds
}

func (w *watcher) add(samples map[seen]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, times := range samples {
		w.seen[s] += times
		w.now += times
	}
}
