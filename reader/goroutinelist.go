// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// ErrNoGoroutineList means that the list of a program's goroutines was not found in its memory.
var ErrNoGoroutineList = errors.New("the list of goroutines was not found")

// AllGoroutines returns every goroutine of the process, whether it is in a span or not. It includes
// those of the Go runtime itself, and some that have exited, which [Process.Goroutines] reports as
// gone. Goroutines that start during the call may be missing. The result has at most 1,048,576
// goroutines. The process must advertise the offset of goroutine ids, as services that use otelctx
// do.
//
// The runtime has a list of all gs in its data. AllGoroutines does not need symbols to find it: it
// searches for a list of gs that contains the goroutines that the process publishes, up to a few
// thousand, or, if it publishes none, the goroutine with id 1. A later call only reads the list again.
//
// The error wraps [ErrNoGoroutineList] if there is no such list, and [ErrNoThreadContext] if the
// process has no readable carrier or does not advertise the offset of goroutine ids. Any other error
// wraps [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or [ErrBusy], or comes from ctx.
func (p *Process) AllGoroutines(ctx context.Context) ([]GoroutineRef, error) {
	v, err := p.threadView(ctx)
	if err != nil {
		return nil, err
	}
	l, err := p.goroutineList(ctx, v)
	if err != nil {
		return nil, err
	}
	defer l.release()
	refs := make([]GoroutineRef, 0, len(l.gs))
	err = l.each(v.runtime.GGoid+8, l.gs, func(g uint64, data []byte) {
		if id := binary.NativeEndian.Uint64(data[v.runtime.GGoid:]); id != 0 {
			refs = append(refs, GoroutineRef{ID: id, G: g})
		}
	})
	if err != nil {
		return nil, p.classify(err)
	}
	return refs, p.confirm(v)
}

// InheritedGoroutines returns goroutines that are probably in a live span that they have inherited:
// they were started by a goroutine in the span, with a plain go statement, and have published
// nothing themselves. [Process.Goroutines] finds out which span each is in. A goroutine inherits the
// labels of the one that starts it, and so a record of its span. Goroutines whose labels have been
// replaced since, as by pprof.Do, are not found, and none is if the process publishes no records.
//
// If the process has more than most goroutines, InheritedGoroutines examines a random sample of
// about that size. share is the share of all goroutines that is examined. Goroutines for which skip
// returns true are left out.
//
// The errors are those of [Process.AllGoroutines].
func (p *Process) InheritedGoroutines(ctx context.Context, most int, skip func(GoroutineRef) bool) (refs []GoroutineRef, share float64, err error) {
	v, err := p.threadView(ctx)
	if err != nil {
		return nil, 0, err
	}
	if !v.hasRecords() || v.spans == nil || v.runtime.GGoid == 0 {
		return nil, 1, nil
	}
	l, err := p.goroutineList(ctx, v)
	if err != nil {
		return nil, 0, err
	}
	defer l.release()
	gs, share := sampled(l.gs, most)
	var labels []uint64
	o := &v.runtime
	err = l.each(max(o.GGoid, o.GLabels)+8, gs, func(g uint64, data []byte) {
		ref := GoroutineRef{binary.NativeEndian.Uint64(data[o.GGoid:]), g}
		label := binary.NativeEndian.Uint64(data[o.GLabels:])
		if ref.ID != 0 && validPointer(label) && !skip(ref) {
			refs, labels = append(refs, ref), append(labels, label)
		}
	})
	if err != nil {
		return nil, 0, p.classify(err)
	}
	spans, err := v.recorded(l.memory, refs, labels)
	if err != nil {
		return nil, 0, p.classify(err)
	}
	in := refs[:0]
	for i, s := range spans {
		if s.known && s.span != 0 {
			in = append(in, refs[i])
		}
	}
	return in, share, p.confirm(v)
}

// sampled returns about most of the addresses, each with the same probability, which is share.
func sampled(all []uint64, most int) (some []uint64, share float64) {
	if len(all) <= most {
		return all, 1
	}
	share = float64(most) / float64(len(all))
	for i := rand.Float64(); i < float64(most); i++ { //nolint:gosec // G404: chance, not secrecy
		some = append(some, all[min(int(i/share), len(all)-1)])
	}
	return some, share
}

const (
	// maxListed limits the number of goroutines in a list.
	maxListed = 1 << 20
	// maxDataRange limits the size of the program data that may contain the list, and maxListData the
	// number of bytes of it that are read. maxSlices limits the number of slices that may be the
	// list, and maxElements the total number of their elements.
	maxDataRange, maxListData, maxSlices, maxElements = 4 << 30, 64 << 20, 1 << 18, 2 << 20
	// maxKnown limits the number of published goroutines that the list must contain.
	maxKnown = 1 << 12
	// listSearches is the number of times that the list of a program is searched for in vain.
	listSearches = 8
	// sliceSize is the size of a slice: a pointer, a length and a capacity.
	sliceSize = 24
)

// goroutineList contains the addresses of all gs of a program.
type goroutineList struct {
	goroutineMemory

	gs []uint64
	// self is the offset in a g of the pointer to the g itself, or 0 if it is unknown.
	self int
}

func (l *goroutineList) release() { goroutineScratches.Put(l.scratch) }

// goroutineList reads the list of all gs, and finds it first if necessary. Release it after use.
func (p *Process) goroutineList(ctx context.Context, v *threadView) (*goroutineList, error) {
	if v.runtime.GGoid == 0 {
		return nil, p.error(fmt.Errorf("%w: the offset of goroutine ids is not advertised", ErrNoThreadContext))
	}
	scratch, _ := goroutineScratches.Get().(*goroutineScratch)
	source := p.until(ctx)
	l := &goroutineList{goroutineMemory: goroutineMemory{memory: source, scratch: scratch}}
	s := &p.goroutines
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use(v)
	var err error
	if s.list != 0 {
		l.gs, l.self = l.elements(s.list), s.listSelf
	}
	if l.gs == nil && s.listSearches < listSearches {
		s.listSearches++
		s.list, err = l.find(p, source, v)
		s.listSelf = l.self
	}
	switch {
	case err != nil:
		l.release()
		return nil, p.classify(err)
	case l.gs == nil:
		l.release()
		return nil, p.error(ErrNoGoroutineList)
	}
	s.listSearches = 0
	return l, nil
}

// find searches the program's data for the list, reads it, and returns the address of the slice.
func (l *goroutineList) find(p *Process, source threadTarget, v *threadView) (uint64, error) {
	known := l.published(source, v)
	search := listSearch{goroutineList: l, goid: v.runtime.GGoid, known: known, maxSlices: maxSlices, maxElements: maxElements}
	remaining := maxListData / os.Getpagesize()
	for pages, err := range dataPages(p, source) {
		if err != nil {
			return 0, err
		}
		pages = pages[:min(len(pages), remaining)]
		remaining -= len(pages)
		if address, err := search.pages(pages); address != 0 || err != nil {
			return address, err
		}
	}
	return 0, nil
}

// dataPages yields the pages of the program's writable data that are present in memory, many at a time.
// Reading other pages would allocate memory in the process.
func dataPages(p *Process, source threadTarget) iter.Seq2[[]uint64, error] {
	return func(yield func([]uint64, error) bool) {
		const chunk = 256 << 20
		remaining := uint64(maxDataRange)
		var end uint64 // of the last mapping of the program's data
		for m, err := range p.target.Maps(func([]byte) bool { return true }) {
			if err != nil {
				yield(nil, err)
				return
			}
			// Variables without an initial value are in anonymous memory behind the others.
			if !m.Perms.Write || m.Perms.Shared || m.Inode == 0 && m.Start != end {
				continue
			}
			end = m.End
			for start := m.Start; start < m.End && remaining > 0; start += chunk {
				size := min(m.End-start, chunk, remaining)
				remaining -= size
				pages, err := source.PresentPages(start, start+size)
				if !yield(pages, err) || err != nil {
					return
				}
			}
		}
	}
}

// listSearch searches a program's data for the list of gs that contains all known ones.
type listSearch struct {
	*goroutineList

	goid  int // the offset of the goroutine id in g
	known []uint64
	// maxSlices and maxElements are the numbers of slices and of their elements that may still be
	// examined.
	maxSlices, maxElements int
	// last is the last page that was searched. A slice that begins there may continue on the next page,
	// even in another mapping.
	last uint64
}

// pages searches these pages, reads the list, and returns the address of its slice, or 0 if it is not
// there.
func (s *listSearch) pages(present []uint64) (uint64, error) {
	const most = 256 // pages that are read at once
	page := uint64(os.Getpagesize())
	if len(present) > 0 && s.last != 0 && present[0] == s.last+page {
		present = append([]uint64{s.last}, present...)
	}
	for len(present) > 0 {
		s.last = present[len(present)-1]
		n := 1
		for n < min(most, len(present)) && present[n] == present[0]+uint64(n)*page {
			n++
		}
		data := make([]byte, uint64(n)*page)
		if s.read(present[0], data) {
			for _, c := range s.candidates(present[0], data) {
				if c.length > s.maxElements {
					continue
				}
				s.maxElements -= c.length
				gs, err := s.slice(c.address, s.goid, s.known)
				if err != nil {
					return 0, err
				}
				if s.gs = gs; gs != nil {
					return c.address, nil
				}
			}
		}
		if n == most && len(present) > n && present[n] == present[n-1]+page {
			n-- // a slice may continue on the next page
		}
		present = present[n:]
	}
	return 0, nil
}

// published returns gs of goroutines that exist according to the process's carriers, at most about
// maxKnown.
func (l *goroutineList) published(source threadTarget, v *threadView) (gs []uint64) {
	published := map[uint64]uint64{} // ids by g
	if v.goroutines != nil {
		goroutines, _ := v.goroutines.inSpan(source, nil)
		for _, g := range goroutines[:min(len(goroutines), maxKnown)] {
			published[g.g] = g.goid
		}
	}
	if v.spans != nil {
		for spans, err := range v.spans.batches(source) {
			if err != nil || len(published) >= maxKnown {
				break
			}
			for _, s := range spans {
				published[s.Starter.G] = s.Starter.ID
			}
		}
	}
	addresses := make(map[uint64]bool, len(published))
	for g := range published {
		addresses[g] = true
	}
	for g, id := range follow(source, addresses, v.runtime.GGoid) {
		if id != 0 && wire.SameGoroutine(id, published[g]) {
			gs = append(gs, g)
		}
	}
	return gs
}

// candidate is a slice in a program's data that may be the list.
type candidate struct {
	address uint64
	length  int
}

// candidates returns the slices in data, at the given address, whose first element points to a g, and that are long enough to
// contain all known ones.
func (s *listSearch) candidates(address uint64, data []byte) (found []candidate) {
	const batch = 512
	var slices []candidate
	var elements []remotemem.Part
	check := func() {
		gs := make([]GoroutineRef, 0, batch)
		if ok, err := s.readEach(elements); err == nil {
			for i := range elements {
				g := binary.NativeEndian.Uint64(elements[i].Data)
				if !ok[i] || !validPointer(g) {
					g = 0
				}
				gs = append(gs, GoroutineRef{G: g})
			}
		}
		s.scratch.used, s.size = 0, s.goid
		if read, err := s.readGs(gs); err == nil {
			for i := range read {
				if gs[i].G != 0 && read[i].Data != nil && selfOffset(gs[i].G, read[i].Data) != 0 {
					found = append(found, slices[i])
				}
			}
		}
		slices, elements = slices[:0], elements[:0]
	}
	for i := 0; i+sliceSize <= len(data) && s.maxSlices > 0; i += 8 {
		pointer, length, capacity := binary.NativeEndian.Uint64(data[i:]), binary.NativeEndian.Uint64(data[i+8:]), binary.NativeEndian.Uint64(data[i+16:])
		if !validPointer(pointer) || length == 0 || length > capacity || capacity > 1<<26 || length < uint64(len(s.known)) {
			continue
		}
		s.maxSlices--
		slices = append(slices, candidate{address + uint64(i), int(min(length, maxListed))})
		elements = append(elements, remotemem.Part{Address: pointer, Data: make([]byte, 8)})
		if len(elements) == batch {
			check()
		}
	}
	check()
	return found
}

// selfOffset returns the offset in a g of the pointer to the g itself, in g.sched, or 0 if there is
// none. data is the part of the g before the goroutine's id.
func selfOffset(g uint64, data []byte) int {
	for offset := 4 * 8; offset+8 <= len(data); offset += 8 {
		if binary.NativeEndian.Uint64(data[offset:]) == g {
			return offset
		}
	}
	return 0
}

// slice returns the elements of the slice at this address if it is a list of gs that contains all known
// ones or, if none is known, the goroutine with id 1. Otherwise it returns nil.
//
// In each g that has an id, g.sched must point to the g itself, at the same offset. A slice that is
// being extended may be inconsistent, so several attempts are made.
func (l *goroutineList) slice(address uint64, goid int, known []uint64) ([]uint64, error) {
	const attempts = 3
	for range attempts {
		gs := l.elements(address)
		if gs == nil {
			continue
		}
		slices.Sort(gs)
		if ok, err := l.valid(gs, goid, known); ok || err != nil {
			return gs, err
		}
	}
	return nil, nil
}

// elements returns the elements of the slice at this address, or nil if they cannot be read.
func (l *goroutineList) elements(address uint64) []uint64 {
	var header [sliceSize]byte
	if !l.read(address, header[:]) {
		return nil
	}
	pointer, length, capacity := binary.NativeEndian.Uint64(header[:]), binary.NativeEndian.Uint64(header[8:]), binary.NativeEndian.Uint64(header[16:])
	if !validPointer(pointer) || length == 0 || length > capacity {
		return nil
	}
	data := make([]byte, 8*min(length, maxListed))
	if !l.read(pointer, data) {
		return nil
	}
	gs := make([]uint64, len(data)/8)
	for i := range gs {
		gs[i] = binary.NativeEndian.Uint64(data[8*i:])
	}
	return gs
}

// valid reports whether all elements of a sorted list point to gs, and known is a part of them.
func (l *goroutineList) valid(gs []uint64, goid int, known []uint64) (bool, error) {
	for i, g := range gs {
		if !validPointer(g) || i > 0 && g == gs[i-1] {
			return false, nil
		}
	}
	for _, g := range known {
		if _, ok := slices.BinarySearch(gs, g); !ok {
			return false, nil
		}
	}
	self, all, first := 0, true, false
	read := 0
	l.self = 0
	err := l.each(goid+8, gs, func(g uint64, data []byte) {
		read++
		id := binary.NativeEndian.Uint64(data[goid:])
		if id == 0 {
			return // a g that has not been used yet
		}
		first = first || id == 1
		if self == 0 {
			self = selfOffset(g, data[:goid])
		}
		all = all && self != 0 && binary.NativeEndian.Uint64(data[self:]) == g
	})
	l.self = self
	return all && read == len(gs) && self != 0 && (first || len(known) > 0), err
}

// each reads the first bytes of each g, and calls do for those that are readable and, if self is known,
// point to themselves. It sorts gs.
func (l *goroutineList) each(size int, gs []uint64, do func(g uint64, data []byte)) error {
	l.size = size
	slices.Sort(gs)
	for len(gs) > 0 {
		const batch = 4096
		refs := make([]GoroutineRef, min(batch, len(gs)))
		for i := range refs {
			if refs[i].G = gs[i]; !validPointer(gs[i]) {
				refs[i].G = 0
			}
		}
		l.scratch.used = 0
		read, err := l.readGs(refs)
		if err != nil {
			return err
		}
		for _, g := range read {
			if g.Data != nil && (l.self == 0 || binary.NativeEndian.Uint64(g.Data[l.self:]) == g.Address) {
				do(g.Address, g.Data)
			}
		}
		gs = gs[len(refs):]
	}
	return nil
}
