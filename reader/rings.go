// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"syscall"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// This is the search for rings that nobody advertises, such as those of the
// OTEL-compatible context storage of Datadog's Java profiler. It finds them by the name
// of the mapping. Where the kernel took no name, it goes by the magic number at the start of
// anonymous memory, or at the start of a page within: the kernel merges a ring with anonymous
// memory beside it.

const (
	// maxRings bounds how many mappings with a ring's name are looked at.
	maxRings = 16
	// maxScanned bounds how many anonymous mappings are looked into, scanned at a
	// time that many.
	maxScanned = 1 << 14
	scanned    = 256
	// maxPages bounds for how many pages of such mappings it is asked whether they are
	// present, and maxPresent into how many present ones is looked.
	maxPages   = 1 << 17
	maxPresent = 1 << 13
)

// ringNames are the names of rings by thread, the better one first: a process may have
// both for the sake of different readers.
var ringNames = [...]string{wire.ThreadRingName, wire.RingName1}

// ringName returns which of ringNames the name of a mapping is, or a negative number.
func ringName(mapping []byte) int {
	for i, name := range ringNames {
		switch string(mapping) {
		case "/memfd:" + name, "/memfd:" + name + " (deleted)", "[anon:" + name + "]", "[anon_shmem:" + name + "]":
			return i
		}
	}
	return -1
}

// findRing looks for a ring by thread in all of the process's memory. It returns a nil
// view if there is none, or if it could not be told which of several is the one.
func (p *Process) findRing(ctx context.Context) (*ringbuf.View, Carrier, error) {
	named, anonymous, err := p.ringMappings(ctx)
	if err != nil {
		return nil, Carrier{}, err
	}
	for _, mappings := range named {
		ring, c, err := p.onlyRing(mappings)
		if err != nil || c.Err != nil || ring != nil {
			c.Source = FoundByName
			return ring, c, err
		}
	}
	marked, err := p.scan(ctx, anonymous)
	if err == nil && len(marked) == 0 {
		marked, err = p.scan(ctx, p.presentPages(ctx, anonymous))
	}
	if err != nil {
		return nil, Carrier{}, err
	}
	ring, c, err := p.onlyRing(marked)
	c.Source = FoundByMagic
	return ring, c, err
}

// ringMappings returns the mappings that a ring may be in: those with each of ringNames,
// and anonymous ones without a name.
func (p *Process) ringMappings(ctx context.Context) (named [len(ringNames)][]procfs.Mapping, anonymous []procfs.Mapping, err error) {
	lines := 0
	keep := func(name []byte) bool {
		lines++
		// Ask ctx now and then: hostile maps run to millions of lines.
		return len(name) == 0 || ringName(name) >= 0 || lines%4096 == 0 && ctx.Err() != nil
	}
	for m, err := range p.target.Maps(keep) {
		if ctx.Err() != nil {
			return named, nil, p.error(ctx.Err())
		}
		if err != nil {
			return named, nil, p.classify(err)
		}
		if !m.Perms.Read || !m.Perms.Write || m.Perms.Exec {
			continue
		}
		if i := ringName([]byte(m.Name)); i >= 0 {
			if len(named[i]) < maxRings {
				named[i] = append(named[i], m)
			}
		} else if m.Name == "" && m.Inode == 0 && !m.Perms.Shared && len(anonymous) < maxScanned {
			anonymous = append(anonymous, m)
		}
	}
	return named, anonymous, nil
}

// presentPages returns what each present page inside of the mappings begins, up to the end of its
// mapping. It looks at the smallest mappings first: the heaps of a large process come last, and may
// be left out. Where nothing tells which pages are present, as on other platforms, it returns none.
func (p *Process) presentPages(ctx context.Context, mappings []procfs.Mapping) (inside []procfs.Mapping) {
	pagemap, err := p.target.Pagemap()
	if err != nil {
		return nil
	}
	defer func() { _ = pagemap.Close() }()
	slices.SortStableFunc(mappings, func(a, b procfs.Mapping) int { return cmp.Compare(a.End-a.Start, b.End-b.Start) })
	page := uint64(os.Getpagesize())
	left := uint64(maxPages)
	var pages []uint64
	for _, m := range mappings {
		// The first page has been looked at.
		first := m.Start + page
		if first >= m.End {
			continue
		}
		end := min(m.End, first+left*page)
		left -= (end - first) / page
		pages, err = pagemap.AppendPresent(pages[:0], first, end)
		for _, start := range pages {
			if len(inside) == maxPresent {
				return inside
			}
			m.Start = start
			inside = append(inside, m)
		}
		if err != nil || left == 0 || ctx.Err() != nil {
			break
		}
	}
	return inside
}

// scan returns the mappings that begin with a ring's magic number, at most maxRings.
func (p *Process) scan(ctx context.Context, mappings []procfs.Mapping) ([]procfs.Mapping, error) {
	var (
		marked []procfs.Mapping
		magic  [scanned][4]byte
		parts  [scanned]ringbuf.Part
	)
	want := [4]byte{}
	putNative32(want[:], wire.RingMagic)
	for len(mappings) > 0 && len(marked) < maxRings {
		if err := ctx.Err(); err != nil {
			return nil, p.error(err)
		}
		n := min(len(mappings), scanned)
		for i, m := range mappings[:n] {
			parts[i] = ringbuf.Part{Address: m.Start, Data: magic[i][:]}
		}
		read, err := p.threads.source.ReadParts(parts[:n])
		if err != nil && !errors.Is(err, syscall.EFAULT) {
			return nil, p.classify(err)
		}
		for i := range read {
			if magic[i] == want && len(marked) < maxRings {
				marked = append(marked, mappings[i])
			}
		}
		if err != nil {
			read++ // The one that cannot be read.
		}
		mappings = mappings[read:]
	}
	return marked, nil
}

// onlyRing returns the one ring by thread that any of the mappings starts with. If it is
// not the only one, the carrier's error says so.
func (p *Process) onlyRing(mappings []procfs.Mapping) (*ringbuf.View, Carrier, error) {
	var only *ringbuf.View
	c := Carrier{Kind: ThreadSlots}
	for _, m := range mappings {
		ring, err := ringbuf.FindView(p.threads.source, m.Start, m.End-m.Start)
		switch {
		case errors.Is(err, ringbuf.ErrNotRing), errors.Is(err, syscall.EFAULT):
		case err != nil:
			return nil, c, p.classify(err)
		case ring.Info().Index != ringbuf.ByThread:
		case only != nil:
			c.Err = errSeveralRings
			return nil, c, nil
		default:
			only = ring
			c.Ring = ring.Info()
			c.Ring.Mapping = m.Name
			c.Fields = ring.Fields()
		}
	}
	return only, c, nil
}

var errSeveralRings = errors.New("there are several rings, and nothing says which one is right")
