// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// nameTable has the names of a program's spans that were read so far. They are read when a
// sample has the number of one that is not known, since the program may end before the part
// is named. A nil nameTable has none.
type nameTable struct {
	table *reader.NameTable
	// known are the names by their numbers. mu is held to read more.
	known atomic.Pointer[[]string]
	mu    sync.Mutex
	// wanted says that somebody is about to read, not before the time after.
	wanted atomic.Bool
	after  time.Time
}

// readNamesAfter is the time from one reading of names to the next: a hostile process has
// numbers that have no name.
const readNamesAfter = 50 * time.Millisecond

// newNameTable returns the names of what a program advertises, which is nil if it advertises
// none, and was if that is of the same table.
func newNameTable(layout *reader.ThreadLayout, was *nameTable) *nameTable {
	switch {
	case layout == nil || layout.Names == nil:
		return nil
	case was != nil && *was.table == *layout.Names:
		return was
	}
	n := &nameTable{table: layout.Names}
	n.known.Store(new([]string))
	return n
}

// read reads the names that are not known yet, if there are any. What cannot be read has no
// name.
func (n *nameTable) read(p *reader.Process) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	known := *n.known.Load()
	names, _ := p.Names(n.table, slices.Clip(known))
	n.known.Store(&names)
}

// knows reports whether the names of a span are known, or if it has any.
func (n *nameTable) knows(s *sampler.Span) bool {
	return n == nil || int(max(s.Name, s.Endpoint)) < len(*n.known.Load()) || s.Name|s.Endpoint == 0
}

func (n *nameTable) name(number uint16) string {
	if known := *n.known.Load(); int(number) < len(known) {
		return known[number]
	}
	return ""
}

// appendTo appends the names of a span to its attributes.
func (n *nameTable) appendTo(shown []reader.ThreadAttribute, s *sampler.Span) []reader.ThreadAttribute {
	if n == nil {
		return shown
	}
	if name := n.name(s.Name); name != "" {
		shown = append(shown, reader.ThreadAttribute{Key: wire.NameKey, Value: name})
	}
	if endpoint := n.name(s.Endpoint); endpoint != "" {
		shown = append(shown, reader.ThreadAttribute{Key: wire.EndpointKey, Value: endpoint})
	}
	return shown
}

// want has the names of a program's spans read soon, on a goroutine of working. It does not wait.
func (n *nameTable) want(working *sync.WaitGroup, t *target) {
	if !n.wanted.CompareAndSwap(false, true) {
		return
	}
	if time.Now().Before(n.after) {
		n.wanted.Store(false)
		return
	}
	t.hold()
	working.Go(func() {
		defer t.release()
		_, _ = patient.Call(context.Background(), t.image.PID, processLimit, func() (struct{}, error) {
			n.read(t.reader)
			return struct{}{}, nil
		})
		n.after = time.Now().Add(readNamesAfter)
		n.wanted.Store(false)
	})
}
