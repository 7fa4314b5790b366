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
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/ringview"
	"github.com/otelctx/otelctx/internal/wire"
)

// This file searches for rings that are not advertised, for example the OTEL-compatible context
// storage of Datadog's Java profiler. It looks for mappings with the name of a ring. If there are
// none, for example because the kernel does not support names, it looks for the magic number of a
// ring: first at the start of each anonymous mapping, then at the start of each of their pages that
// is present, because the kernel merges adjacent anonymous memory into one mapping.

const (
	// maxRings limits the number of mappings with the name or the magic number of a ring that are
	// examined.
	maxRings = 16
	// maxScanned limits the number of anonymous mappings that are searched for the magic number.
	// scanBatch is the number of mappings that one system call reads.
	maxScanned = 1 << 14
	scanBatch  = 256
	// maxPages limits the number of pages of these mappings that are checked for presence in
	// memory. maxPresent limits the number of present pages that are searched.
	maxPages   = 1 << 17
	maxPresent = 1 << 13
)

// ringNames lists the names of rings indexed by thread, in order of preference. A process may have
// a ring of each name, for different readers.
var ringNames = [...]string{wire.ThreadRingName, wire.RingName1}

// ringName returns the index in ringNames of the name that a mapping has, or -1.
func ringName(mapping []byte) int {
	for i, name := range ringNames {
		switch string(mapping) {
		case "/memfd:" + name, "/memfd:" + name + " (deleted)", "[anon:" + name + "]", "[anon_shmem:" + name + "]":
			return i
		}
	}
	return -1
}

// findRing searches the process's memory for a ring indexed by thread. The view is nil if there is
// none, or if several were found. In the latter case Carrier.Err says so.
func (p *Process) findRing(ctx context.Context) (*ringview.View, Carrier, error) {
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

// ringMappings returns the mappings that may hold a ring. named[i] lists the mappings with the name
// ringNames[i], and anonymous lists the anonymous mappings without a name.
func (p *Process) ringMappings(ctx context.Context) (named [len(ringNames)][]procfs.Mapping, anonymous []procfs.Mapping, err error) {
	for m, err := range p.mappings(ctx, func(name []byte) bool { return len(name) == 0 || ringName(name) >= 0 }) {
		if err != nil {
			return named, nil, err
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

// presentPages returns the places inside of mappings where a ring may begin: a mapping for each
// page that is present in memory, from that page to the end of the given mapping. It examines the
// smallest mappings first, so that large heaps are left out if there are too many pages. Without a
// pagemap, as on other platforms, it returns nothing.
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
		// The caller has already examined the first page.
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

// scan returns the mappings that begin with the magic number of a ring, at most maxRings of them.
func (p *Process) scan(ctx context.Context, mappings []procfs.Mapping) ([]procfs.Mapping, error) {
	var (
		marked []procfs.Mapping
		magic  [scanBatch][4]byte
		parts  [scanBatch]remotemem.Part
	)
	want := [4]byte{}
	putNative32(want[:], wire.RingMagic)
	for len(mappings) > 0 && len(marked) < maxRings {
		if err := ctx.Err(); err != nil {
			return nil, p.error(err)
		}
		n := min(len(mappings), scanBatch)
		for i, m := range mappings[:n] {
			parts[i] = remotemem.Part{Address: m.Start, Data: magic[i][:]}
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
			read++ // skip the unreadable mapping
		}
		mappings = mappings[read:]
	}
	return marked, nil
}

// onlyRing returns the ring indexed by thread that begins one of the mappings. The view is nil if
// there is none, or if there are several. In the latter case Carrier.Err says so.
func (p *Process) onlyRing(mappings []procfs.Mapping) (*ringview.View, Carrier, error) {
	var only *ringview.View
	c := Carrier{Kind: ThreadSlots}
	for _, m := range mappings {
		ring, err := ringview.FindIn(p.threads.source, m.Start, m.End-m.Start)
		switch {
		case errors.Is(err, ringview.ErrNotRing), errors.Is(err, syscall.EFAULT):
		case err != nil:
			return nil, c, p.classify(err)
		case ring.Info().Index != wire.RingByThread:
		case only != nil:
			c.Err = errSeveralRings
			return nil, c, nil
		default:
			only = ring
			info := ring.Info()
			info.Mapping = m.Name
			c.Table = slots(&info, ring.Fields())
		}
	}
	return only, c, nil
}

var errSeveralRings = errors.New("several rings found, and nothing says which one is right")
