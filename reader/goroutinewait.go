// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/otelctx/otelctx/internal/gostack"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// Wait is the object that a goroutine waits for. It is zero if that is unknown, or if the goroutine
// waits for something else.
type Wait struct {
	// Lock identifies a lock: goroutines with the same number wait for the same one. It is the address
	// of a sync.Mutex or sync.RWMutex, or an address in a sync.WaitGroup, a sync.Cond or another
	// semaphore.
	Lock uint64
	// Channels lists the channels of a channel operation, or of the cases of a select statement.
	Channels []Channel
	// Descriptor is the file descriptor that a goroutine in state "IO wait" waits for, if Polled is
	// true. Writing says that it waits to write to it, and not to read from it.
	Descriptor      int
	Polled, Writing bool
}

// Channel is a channel. Two channels are the same if they have the same address.
type Channel struct {
	Address uint64
	// Buffered is the number of values in the channel's buffer, and Capacity the size of the buffer.
	Buffered, Capacity uint64
}

// waitLayout describes where a program keeps what its goroutines wait for. Each field is 0 until it
// has been found.
type waitLayout struct {
	// waiting is the offset in g of the pointer to a sudog: the runtime's struct for a goroutine in
	// the queue of a channel or a lock.
	waiting int
	// channel is the offset in a sudog of the pointer to the channel.
	channel int
	// sudogs and polls are distances from the stack pointer of a waiting goroutine at which pointers
	// to its sudog or pollDesc have been found.
	sudogs, polls []int
}

// Sizes and offsets in structs of the runtime, which have not changed in any supported release. Each
// use is verified with something that only the right object has.
const (
	// The first word of a sudog points to its g. It is followed by its neighbors in the queue and a
	// pointer to the element or the semaphore. Since Go 1.26 that pointer may be in the next word, where
	// the garbage collector does not see it.
	sudogSize, sudogNext, sudogPrev, sudogElem, sudogHiddenElem = 104, 8, 16, 24, 32
	// A sudog begins the list of its select statement two words before the channel.
	waitLinkBeforeChannel = 16
	// A channel has the number of values and the size of the buffer, then the ends of its two queues.
	channelSize, channelReceivers, channelSenders = 96, 64, 80
	// A pollDesc has a descriptor and pointers to the goroutines that wait to read and to write.
	pollSize, pollDescriptor, pollReader, pollWriter = 48, 8, 32, 40
	// A Mutex has a state, in which the bits from mutexWaiters count the waiters, and a semaphore. An
	// RWMutex begins with a Mutex and has two more semaphores, the number of readers, which is negative
	// if a writer is waiting or writing, and the number of readers for which a writer waits.
	mutexSemaphore, mutexWaiters                                             = 4, 3
	writerSemaphore, readerSemaphore, rwMutexReaders, rwMutexPending, rwSize = 8, 12, 16, 20, 24
)

const (
	// waitStack is the size of the innermost part of a stack that is searched for pointers.
	waitStack = 1 << 10
	// maxCases is the maximum number of cases of a select statement.
	maxCases = 256
	// maxHints limits the distances that are remembered.
	maxHints = 4
	// A call examines this many cases of select statements, and searches this many stacks, for each
	// goroutine, and a few more. Few stacks need a search, because its result is remembered.
	casesEach, moreCases       = 16, 1 << 12
	searchesEach, moreSearches = 0.25, 512
)

// waitBudget limits what one call of Goroutines does to find out what goroutines wait for.
type waitBudget struct{ cases, searches int }

func newWaitBudget(goroutines int) waitBudget {
	return waitBudget{moreCases + casesEach*goroutines, moreSearches + int(searchesEach*float64(goroutines))}
}

// channelOffsets are the offsets in a sudog at which a pointer to the channel may be. From Go 1.26 on,
// it is in one of two consecutive words.
var channelOffsets = [...]int{80, 88, 96}

// waitKind is a kind of wait for an object.
type waitKind int

const (
	otherWait waitKind = iota
	lockWait
	channelWait
	descriptorWait
)

func waitKindOf(reason string) waitKind {
	switch {
	case strings.HasSuffix(reason, "(nil chan)"):
		return otherWait
	case reason == "semacquire" || strings.HasPrefix(reason, "sync."):
		return lockWait
	case reason == "select" || strings.HasPrefix(reason, "chan "):
		return channelWait
	case reason == "IO wait":
		return descriptorWait
	default:
		return otherWait
	}
}

// waitReading is what is read to find out what a goroutine waits for.
type waitReading struct {
	out   *Goroutine
	g     *gostack.G
	index int // in pending
	kind  waitKind
	// sudog is the address of the goroutine's sudog, and data its content. hidden says that g.waiting
	// led to it, so that the pointer to a semaphore may be in the hidden word.
	sudog  uint64
	data   []byte
	hidden bool
	elem   uint64
	wait   Wait
}

// readWaits sets Wait of the goroutines in out whose indexes are in pending, as far as they are
// waiting. It returns the indexes of goroutines that changed meanwhile.
func (c *goroutineCall) readWaits(out []Goroutine, pending []int, readings []goroutineReading) (changed []int, err error) {
	var waits []*waitReading
	for i, index := range pending {
		g := readings[i].g
		if kind := waitKindOf(out[index].WaitReason); kind != otherWait && out[index].State == GoroutineWaiting {
			waits = append(waits, &waitReading{out: &out[index], g: g, index: index, kind: kind})
		}
	}
	if len(waits) == 0 {
		return nil, nil
	}
	for _, read := range []func([]*waitReading) error{c.findSudogs, c.readLocks, c.readChannels, c.readPolls} {
		if err := read(waits); err != nil {
			return nil, err
		}
	}
	parts := make([]remotemem.Part, len(waits))
	for i, w := range waits {
		parts[i] = remotemem.Part{Address: w.g.Address, Data: c.scratch.alloc(c.size)}
	}
	ok, err := c.readEach(parts)
	if err != nil {
		return nil, err
	}
	for i, w := range waits {
		if !ok[i] || !c.layout.SameAs(w.g.Data, parts[i].Data) {
			changed = append(changed, w.index)
			continue
		}
		w.out.Wait = w.wait
	}
	return changed, nil
}

// pointed is a pointer that a goroutine has, and the memory at that address.
type pointed struct {
	w       *waitReading
	address uint64
	// place is the offset of the pointer in g, or its distance from the stack pointer.
	place int
	data  []byte
}

// follow reads size bytes at each address, and drops those that cannot be read.
func (c *goroutineCall) follow(all []pointed, size int) ([]pointed, error) {
	parts := make([]remotemem.Part, len(all))
	for i := range all {
		all[i].data = c.scratch.alloc(size)
		parts[i] = remotemem.Part{Address: all[i].address, Data: all[i].data}
	}
	ok, err := c.readEach(parts)
	if err != nil {
		return nil, err
	}
	read := all[:0]
	for i := range all {
		if ok[i] {
			read = append(read, all[i])
		}
	}
	return read, nil
}

// findSudogs finds the sudogs of goroutines that wait for locks and channels.
func (c *goroutineCall) findSudogs(waits []*waitReading) error {
	if c.waits.waiting == 0 {
		if err := c.findWaiting(waits); err != nil {
			return err
		}
	}
	var found []pointed
	for _, w := range waits {
		if w.kind == descriptorWait || c.waits.waiting == 0 {
			continue
		}
		if a := word(w.g.Data, c.waits.waiting); validPointer(a) {
			found = append(found, pointed{w: w, address: a})
		}
	}
	found, err := c.follow(found, sudogSize)
	if err != nil {
		return err
	}
	for _, p := range found {
		if word(p.data, 0) == p.w.g.Address {
			p.w.sudog, p.w.data, p.w.hidden = p.address, p.data, true
		}
	}
	// Before Go 1.26, only the stack leads to the sudog of a goroutine that waits for a lock.
	isSudog := func(p *pointed) bool {
		return word(p.data, 0) == p.w.g.Address && word(p.data, sudogElem) != 0
	}
	return c.searchStacks(waits, &c.waits.sudogs, sudogSize,
		func(w *waitReading) bool { return w.kind == lockWait && w.sudog == 0 }, isSudog,
		func(p *pointed) { p.w.sudog, p.w.data = p.address, p.data })
}

// findWaiting finds the offset of g.waiting: the only one at which each of these gs has a pointer to a
// sudog of the goroutine, if it has any.
func (c *goroutineCall) findWaiting(waits []*waitReading) error {
	var pointers []pointed
	for _, w := range waits {
		if w.kind == descriptorWait {
			continue
		}
		for offset := c.layout.WaitReason + 8; offset+8 <= len(w.g.Data); offset += 8 {
			if a := word(w.g.Data, offset); validPointer(a) && a != w.g.Address {
				pointers = append(pointers, pointed{w: w, address: a, place: offset})
			}
		}
	}
	pointers, err := c.follow(pointers, 8)
	if err != nil {
		return err
	}
	votes, voters := map[int]int{}, map[*waitReading]bool{}
	for _, p := range pointers {
		if word(p.data, 0) == p.w.g.Address {
			votes[p.place]++
			voters[p.w] = true
		}
	}
	var found []int
	for offset, n := range votes {
		if n == len(voters) {
			found = append(found, offset)
		}
	}
	if len(found) == 1 {
		c.waits.waiting = found[0]
	}
	return nil
}

// searchStacks searches the innermost parts of the stacks of those goroutines for which wanted returns
// true. It looks for the only pointer to an object for which is returns true, and calls use for it.
// hints are distances from the stack pointer at which such pointers have been found, which are tried
// first.
func (c *goroutineCall) searchStacks(waits []*waitReading, hints *[]int, size int,
	wanted func(*waitReading) bool, is func(*pointed) bool, use func(*pointed),
) error {
	search := func(places func(w *waitReading) []int, learn bool) error {
		var pointers []pointed
		for _, w := range waits {
			if !wanted(w) || learn && c.budget.searches == 0 {
				continue
			}
			if learn {
				c.budget.searches--
			}
			first := len(pointers)
			for _, place := range places(w) {
				a := word(w.g.Stack.Data, place)
				inStack := a-w.g.Stack.Low < uint64(len(w.g.Stack.Data))
				known := slices.ContainsFunc(pointers[first:], func(p pointed) bool { return p.address == a })
				if validPointer(a) && a != w.g.Address && !inStack && !known {
					pointers = append(pointers, pointed{w: w, address: a, place: place})
				}
			}
		}
		pointers, err := c.follow(pointers, size)
		if err != nil {
			return err
		}
		matches := map[*waitReading][]*pointed{}
		for i := range pointers {
			if p := &pointers[i]; is(p) {
				matches[p.w] = append(matches[p.w], p)
			}
		}
		for _, all := range matches {
			if len(all) != 1 {
				continue
			}
			if p := all[0]; learn && len(*hints) < maxHints && !slices.Contains(*hints, p.place) {
				*hints = append(*hints, p.place)
			}
			use(all[0])
		}
		return nil
	}
	if len(*hints) > 0 {
		if err := search(func(*waitReading) []int { return *hints }, false); err != nil {
			return err
		}
	}
	all := make([]int, 0, waitStack/8)
	for place := 0; place < waitStack; place += 8 {
		all = append(all, place)
	}
	return search(func(*waitReading) []int { return all }, true)
}

// readLocks sets the locks of goroutines that wait for one.
func (c *goroutineCall) readLocks(waits []*waitReading) error {
	var found []pointed
	for _, w := range waits {
		if w.kind != lockWait || w.sudog == 0 {
			continue
		}
		if w.elem = word(w.data, sudogElem); w.elem == 0 && w.hidden {
			w.elem = word(w.data, sudogHiddenElem)
		}
		if w.elem%4 != 0 || w.elem < rwSize || w.elem >= addressEnd {
			continue
		}
		switch w.out.WaitReason {
		case "sync.Mutex.Lock":
			found = append(found, pointed{w: w, address: w.elem - mutexSemaphore})
		case "sync.RWMutex.Lock":
			found = append(found, pointed{w: w, address: w.elem - writerSemaphore})
		case "sync.RWMutex.RLock":
			found = append(found, pointed{w: w, address: w.elem - readerSemaphore})
		default:
			w.wait.Lock = w.elem
		}
	}
	found, err := c.follow(found, rwSize)
	if err != nil {
		return err
	}
	for _, p := range found {
		half := func(offset int) int32 { return int32(binary.NativeEndian.Uint32(p.data[offset:])) }
		var contended bool
		switch p.w.out.WaitReason {
		case "sync.Mutex.Lock":
			contended = uint32(half(0))>>mutexWaiters > 0
		case "sync.RWMutex.Lock":
			contended = half(rwMutexReaders) < 0 && half(rwMutexPending) > 0
		default:
			contended = half(rwMutexReaders) < 0
		}
		if contended {
			p.w.wait.Lock = p.address
		}
	}
	return nil
}

// caseReading is a channel operation of a goroutine: its only one, or a case of its select statement.
type caseReading struct {
	w     *waitReading
	sudog uint64
	data  []byte
}

// readChannels sets the channels of goroutines that wait for some.
func (c *goroutineCall) readChannels(waits []*waitReading) error {
	var cases []caseReading
	for _, w := range waits {
		if w.kind == channelWait && w.sudog != 0 {
			cases = append(cases, caseReading{w, w.sudog, w.data})
		}
	}
	if len(cases) == 0 {
		return nil
	}
	if c.waits.channel == 0 {
		if err := c.findChannel(cases); err != nil || c.waits.channel == 0 {
			return err
		}
	}
	incomplete, missing := map[*waitReading]bool{}, map[*waitReading]bool{} // some channels are unknown, or the next one
	for range maxCases {
		if err := c.readCases(cases, incomplete); err != nil {
			return err
		}
		var next []pointed
		for _, cs := range cases {
			if a := word(cs.data, c.waits.channel-waitLinkBeforeChannel); a != 0 && cs.w.out.WaitReason == "select" {
				if !validPointer(a) || c.budget.cases == 0 {
					incomplete[cs.w] = true
					continue
				}
				c.budget.cases--
				next = append(next, pointed{w: cs.w, address: a})
			}
		}
		expected := len(next)
		for _, p := range next {
			missing[p.w] = true
		}
		next, err := c.follow(next, sudogSize)
		if err != nil {
			return err
		}
		cases = cases[:0]
		for _, p := range next {
			if word(p.data, 0) == p.w.g.Address {
				delete(missing, p.w)
				cases = append(cases, caseReading{p.w, p.address, p.data})
			}
		}
		if len(cases) < expected {
			maps.Copy(incomplete, missing)
		}
		clear(missing)
		if len(cases) == 0 {
			break
		}
	}
	for _, cs := range cases {
		incomplete[cs.w] = true
	}
	for w := range incomplete {
		w.wait.Channels = nil
	}
	return nil
}

// findChannel finds the offset in a sudog of the pointer to the channel: the only one at which all these
// sudogs have a pointer to a channel in one of whose queues they are the first.
func (c *goroutineCall) findChannel(cases []caseReading) error {
	votes := map[int]int{}
	for _, offset := range channelOffsets {
		var found []pointed
		sudogs := map[*waitReading]uint64{}
		for _, cs := range cases {
			if a := word(cs.data, offset); validPointer(a) && word(cs.data, sudogPrev) == 0 {
				found = append(found, pointed{w: cs.w, address: a})
				sudogs[cs.w] = cs.sudog
			}
		}
		found, err := c.follow(found, channelSize)
		if err != nil {
			return err
		}
		for _, p := range found {
			if s := sudogs[p.w]; isChannel(p.data) && (word(p.data, channelReceivers) == s || word(p.data, channelSenders) == s) {
				votes[offset]++
			}
		}
	}
	hidden := votes[channelOffsets[1]] + votes[channelOffsets[2]]
	switch {
	case votes[channelOffsets[0]] > 0 && hidden == 0:
		c.waits.channel = channelOffsets[0]
	case votes[channelOffsets[0]] == 0 && hidden > 0:
		c.waits.channel = channelOffsets[1]
	}
	return nil
}

// isChannel reports whether data may be a channel.
func isChannel(data []byte) bool { return word(data, 0) <= word(data, 8) }

// readCases appends the channel of each operation to the channels of its goroutine. The channel is
// proven by its queue: the operation is the first of a queue, or the operation in front of it is for the
// same channel.
func (c *goroutineCall) readCases(cases []caseReading, incomplete map[*waitReading]bool) error {
	parts := make([]remotemem.Part, 0, 2*len(cases))
	channels := make([]uint64, len(cases))
	for i, cs := range cases {
		if channels[i] = c.channelOf(cs.data); !validPointer(channels[i]) {
			channels[i] = 0
		}
		var channel, previous remotemem.Part
		if channels[i] != 0 {
			channel = remotemem.Part{Address: channels[i], Data: c.scratch.alloc(channelSize)}
			if prev := word(cs.data, sudogPrev); validPointer(prev) {
				previous = remotemem.Part{Address: prev, Data: c.scratch.alloc(sudogSize)}
			}
		}
		parts = append(parts, channel, previous)
	}
	ok, err := c.readEach(parts)
	if err != nil {
		return err
	}
	for i, cs := range cases {
		channel, previous := parts[2*i].Data, parts[2*i+1].Data
		proven := channels[i] != 0 && ok[2*i] && isChannel(channel)
		if word(cs.data, sudogPrev) == 0 {
			proven = proven && (word(channel, channelReceivers) == cs.sudog || word(channel, channelSenders) == cs.sudog)
		} else {
			proven = proven && previous != nil && ok[2*i+1] && word(previous, sudogNext) == cs.sudog && c.channelOf(previous) == channels[i]
		}
		if !proven {
			incomplete[cs.w] = true
			continue
		}
		cs.w.wait.Channels = append(cs.w.wait.Channels, Channel{channels[i], word(channel, 0), word(channel, 8)})
	}
	return nil
}

// channelOf returns the address of the channel in a sudog.
func (c *goroutineCall) channelOf(sudog []byte) uint64 {
	a := word(sudog, c.waits.channel)
	if a == 0 && c.waits.channel > channelOffsets[0] {
		a = word(sudog, c.waits.channel+8)
	}
	return a
}

// readPolls sets the descriptors of goroutines that wait for one.
func (c *goroutineCall) readPolls(waits []*waitReading) error {
	return c.searchStacks(waits, &c.waits.polls, pollSize,
		func(w *waitReading) bool { return w.kind == descriptorWait && !w.wait.Polled },
		func(p *pointed) bool {
			g := p.w.g.Address
			const maxDescriptor = 1 << 30
			return (word(p.data, pollReader) == g) != (word(p.data, pollWriter) == g) && word(p.data, pollDescriptor) < maxDescriptor
		},
		func(p *pointed) {
			w := &p.w.wait
			w.Descriptor, w.Polled, w.Writing = int(word(p.data, pollDescriptor)), true, word(p.data, pollWriter) == p.w.g.Address
		})
}

// word returns the word at an offset, or 0 if data does not contain it.
func word(data []byte, offset int) uint64 {
	if offset < 0 || offset > len(data)-8 {
		return 0
	}
	return binary.NativeEndian.Uint64(data[offset:])
}
