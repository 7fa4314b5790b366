// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// nameTable caches the span names of a program. Names are read as soon as a sample has an unknown name
// number, since the program may end before the batch is named. A nil nameTable has no names.
type nameTable struct {
	table *reader.Table
	// names holds the names by number. mu is held while new names are read.
	names atomic.Pointer[[]string]
	mu    sync.Mutex
	// requested reports whether a read is pending. after is the earliest time of the next read.
	requested atomic.Bool
	after     time.Time
}

// readNamesAfter is the minimum time between two requested reads. Without it, a hostile process could
// cause a read with each sample by using numbers that have no name.
const readNamesAfter = 50 * time.Millisecond

// newNameTable returns the name table that a program advertises, or nil if it advertises none. It returns
// previous if that is still the advertised table.
func newNameTable(layout *reader.ThreadLayout, previous *nameTable) *nameTable {
	switch {
	case layout == nil || layout.Names == nil:
		return nil
	case previous != nil && reflect.DeepEqual(previous.table, layout.Names):
		return previous
	}
	n := &nameTable{table: layout.Names}
	n.names.Store(new([]string))
	return n
}

// read reads new names. After an error, the table is unchanged. check returns an error if the process has executed another
// program, which may have its own names at the same address.
func (n *nameTable) read(p *reader.Process, check func() error) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if names, err := p.Names(n.table, slices.Clip(*n.names.Load())); err == nil && check() == nil {
		n.names.Store(&names)
	}
}

// knows reports whether the names of a span have been read. It returns true for a span without names.
func (n *nameTable) knows(s *sampler.Span) bool {
	return n == nil || int(max(s.Name, s.Endpoint)) < len(*n.names.Load()) || s.Name|s.Endpoint == 0
}

func (n *nameTable) name(number uint16) string {
	if names := *n.names.Load(); int(number) < len(names) {
		return names[number]
	}
	return ""
}

func (n *nameTable) appendTo(attributes []reader.Attribute, s *sampler.Span) []reader.Attribute {
	if n == nil {
		return attributes
	}
	if name := n.name(s.Name); name != "" {
		attributes = append(attributes, reader.Attribute{Key: wire.NameKey, Value: name})
	}
	if endpoint := n.name(s.Endpoint); endpoint != "" {
		attributes = append(attributes, reader.Attribute{Key: wire.EndpointKey, Value: endpoint})
	}
	return attributes
}

// request starts a goroutine, counted by working, that reads new names, unless a read is pending or the
// last one was less than readNamesAfter ago. It does not block. See read for check.
func (n *nameTable) request(working *sync.WaitGroup, t *target, check func() error) {
	if !n.requested.CompareAndSwap(false, true) {
		return
	}
	if time.Now().Before(n.after) {
		n.requested.Store(false)
		return
	}
	t.acquire()
	working.Go(func() {
		defer t.release()
		_, _ = timelimit.Call(context.Background(), t.image.PID, processLimit, func() (struct{}, error) {
			n.read(t.reader, check)
			return struct{}{}, nil
		})
		n.after = time.Now().Add(readNamesAfter)
		n.requested.Store(false)
	})
}
