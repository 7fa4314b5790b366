// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/otelctx/otelctx/benchmarks/internal/truth"
)

// seen is a sample taken by an observer: the number on its stack, the span that the observer gives for it, and the
// kind of wait, which is empty if it is unknown.
type seen struct {
	number uint64
	given  id
	wait   string
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
			must(pprof.Lookup("goroutine").WriteTo(&profile, 1))
			w.add(profile.String())
		}
	}()
	return w
}

func (w *watcher) stop() {
	close(w.end)
	<-w.ended
}

// enough reports whether there are enough samples of a pattern in a round.
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

func (w *watcher) add(profile string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for stack := range strings.SplitSeq(profile, "\n\n") {
		if s, times, ok := parseGoroutines(stack); ok {
			w.seen[s] += times
			w.now += times
		}
	}
}

var (
	spanLabel  = regexp.MustCompile(`"span_id":"([0-9a-f]+)"`)
	traceLabel = regexp.MustCompile(`"trace_id":"([0-9a-f]+)"`)
)

// parseGoroutines parses the part of a goroutine profile that describes goroutines with the same stack and labels.
// ok is false if the stack has no number.
func parseGoroutines(text string) (s seen, times int, ok bool) {
	if !strings.Contains(text, ".spell+") {
		return s, 0, false
	}
	var names []string
	var traceID, spanID string
	for line := range strings.Lines(text) {
		if count, _, found := strings.Cut(line, " @ "); found && times == 0 {
			times, _ = strconv.Atoi(count)
		}
		if list, found := strings.CutPrefix(line, "# labels: "); found {
			traceID, spanID = match(traceLabel, list), match(spanLabel, list)
		}
		if fields := strings.Split(line, "\t"); len(fields) > 2 && fields[0] == "#" {
			name, _, _ := strings.Cut(fields[2], "+0x")
			names = append(names, strings.TrimSpace(name))
		}
	}
	var err error
	if s.given, err = parseID(traceID, spanID); err != nil {
		return s, 0, false
	}
	s.number, ok = truth.Told(names)
	return s, times, ok
}

func match(re *regexp.Regexp, s string) string {
	if m := re.FindStringSubmatch(s); m != nil {
		return m[1]
	}
	return ""
}

// write writes a line for each combination of number and span, with the number of samples.
func (w *watcher) write(to io.Writer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, times := range w.seen {
		if _, err := fmt.Fprintf(to, "%d %x %x %d\n", s.number, s.given.trace[:], s.given.span[:], times); err != nil {
			return err
		}
	}
	return nil
}

// readGoroutines reads the output of write.
func readGoroutines(text string) (map[seen]int, error) {
	all := map[seen]int{}
	for line := range strings.Lines(text) {
		var (
			s               seen
			traceID, spanID string
			times           int
		)
		if _, err := fmt.Sscan(line, &s.number, &traceID, &spanID, &times); err != nil {
			return nil, err
		}
		var err error
		if s.given, err = parseID(traceID, spanID); err != nil {
			return nil, err
		}
		all[s] = times
	}
	return all, nil
}
