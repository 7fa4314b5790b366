// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/membarrier"
	"github.com/otelctx/otelctx/internal/wire"
)

// Span is what a slot shows. Identifiers are W3C's, read as big-endian numbers. The
// zero Span shows nothing.
type Span struct {
	TraceIDHigh, TraceIDLow uint64
	SpanID                  uint64
	LocalRootSpanID         uint64
	TraceFlags              uint8
	// Attributes are encoded as OTEP 4947 has them. Where they do not fit into the slots
	// all together, those that do, one after the other, are shown.
	//
	// They are written the quicker way if their capacity is a multiple of 8 bytes, or
	// room for the rest of the last 8: what is there may get into the slot, behind the
	// attributes.
	Attributes []byte
}

// Ring is the memory of a ring. Its methods may be called concurrently.
type Ring struct {
	// The order of these is known to the assembly, by their names.
	base             unsafe.Pointer // slot 0
	mask             uint64
	shift            uint64 // log2 of the slots' size
	gm, goid, procid uint64
	byGoroutine      uint64 // 1 or 0
	exclusive        uint64 // 1 if slots may have a thread to themselves, or 0

	layout1 bool
	// claimed is what a claim adds to a slot's state.
	claimed uint64
	// fast says that the assembly has all it needs.
	fast       bool
	attributes int
	runtime    *goruntime.Runtime
}

// Config says what a ring's memory looks like.
type Config struct {
	// Memory holds the slots, a power of two of them, each SlotSize bytes and that
	// a power of two as well. It stays mapped for ever: writers do not ask.
	Memory   []byte
	SlotSize int
	// Layout1 has slots of layout 1, which are by thread and hold no owner.
	Layout1     bool
	ByGoroutine bool
	Runtime     *goruntime.Runtime
}

// New returns the ring in c.Memory.
func New(c Config) *Ring {
	r := &Ring{
		base:    unsafe.Pointer(unsafe.SliceData(c.Memory)),
		mask:    uint64(len(c.Memory)/c.SlotSize - 1),
		shift:   uint64(bits.TrailingZeros(uint(c.SlotSize))),
		layout1: c.Layout1,
		claimed: wire.SlotInUse,
		runtime: c.Runtime,
	}
	if c.ByGoroutine {
		r.byGoroutine = 1
	}
	if !c.Layout1 {
		r.claimed |= 1 << wire.SlotSeqShift
		r.attributes = c.SlotSize - wire.SlotAttributes
	}
	r.fast = Supported && !c.Layout1
	for fact, at := range map[goruntime.Fact]*uint64{
		goruntime.GM: &r.gm, goruntime.GGoid: &r.goid, goruntime.MProcid: &r.procid,
	} {
		offset, err := c.Runtime.Offset(fact)
		*at = uint64(offset)
		r.fast = r.fast && err == nil
	}
	if r.fast && !c.ByGoroutine && membarrier.Announce() {
		r.exclusive = 1
	}
	return r
}

// What wire.Slot2.Sharing holds of a slot that is by thread.
const (
	// revoked: a thread may not begin to write any more without a claim.
	revoked = 1 << 0
	// shared: no thread is still writing without a claim. It stays so.
	shared = 1 << 1
	// writing: the thread that has the slot to itself is at it, or about to find that
	// it was revoked. That thread stores this half of the word and nobody else does.
	writing = 1 << 16
)

// attempts is how often a writer tries to claim a slot. A claim is held for
// nanoseconds, unless the kernel takes the processor away just then.
const attempts = 64

// StoreFast is Store where that takes a few loads and stores only, and small enough to
// become part of its caller. Else it has done nothing and returns [Busy] instead of a
// slot: Store has to do it.
func (r *Ring) StoreFast(s *Span) (slot, goid uint64) { return store(r, s) }

// SwapFast is StoreFast and returns what Store does. It has done nothing too if over is not
// 0 and not the span that the slot shows of the calling goroutine.
func (r *Ring) SwapFast(s *Span, over uint64) (slot, goid, shown uint64) { return swap(r, s, over) }

// Busy is what there is instead of a slot.
const Busy = ^uint64(0)

// Store shows s in the slot of the calling thread or goroutine and returns that slot, the
// id of the calling goroutine if it is known, and that of the span that the slot has shown
// so far if it was that goroutine's (in layout 1 everybody's), else 0. ok is false if
// another writer held on to the slot: then it shows what that one wrote, or nothing.
func (r *Ring) Store(s *Span) (slot uint32, goid, shown uint64, ok bool) {
	goruntime.Pin()
	self := r.runtime.Self()
	n := uint64(self.TID)
	if r.byGoroutine == 1 {
		n = self.Goid
	}
	at := r.at(n)
	if ok = r.enter(at, self.TID) && r.claim(at); ok {
		if r.owner(at).Goid == self.Goid || r.layout1 {
			shown = atomic.LoadUint64(&at.SpanID)
		}
		r.write(at, s, self)
	} else {
		r.blank(at, atomic.LoadUint64(&at.SpanID))
	}
	goruntime.Unpin()
	return uint32(n & r.mask), self.Goid, shown, ok
}

// Replace shows s in a slot if that shows the span with this id, and reports
// whether it did; the owner stays. A nil s shows nothing. Either way the slot does
// not show the span any more, if only because it shows nothing where another writer
// held on to it. It may be called from anywhere.
func (r *Ring) Replace(slot uint32, spanID uint64, s *Span) bool {
	at := r.at(uint64(slot))
	if atomic.LoadUint64(&at.SpanID) != spanID {
		return false
	}
	if s == nil {
		s = &nothing
	}
	if outcome := replace(r, at, spanID, s); outcome != Busy {
		return outcome == 1
	}
	return r.replaceSlow(at, slot, spanID, s)
}

// replaceSlow is Replace where the assembly cannot do it.
func (r *Ring) replaceSlow(at *wire.Slot2, slot uint32, spanID uint64, s *Span) bool {
	var done bool
	goruntime.Pin()
	// To show nothing there takes no claim.
	if (r.entered(at, r.runtime.ThreadID()) || s != &nothing && r.share(at)) && r.claim(at) {
		if done = r.Shows(slot, spanID); done {
			r.write(at, s, r.owner(at))
		} else {
			r.release(at)
		}
	} else {
		done = r.blank(at, spanID) && s == &nothing
	}
	goruntime.Unpin()
	return done
}

// Evict has a slot show nothing if its owner's id, masked, is bucket. The ring must
// be of layout 2.
func (r *Ring) Evict(slot uint32, bucket, mask uint64) {
	at := r.at(uint64(slot))
	goruntime.Pin()
	if r.entered(at, r.runtime.ThreadID()) && r.claim(at) {
		if at.Owner&mask == bucket {
			r.write(at, &nothing, goruntime.Self{})
		} else {
			r.release(at)
		}
	} else if id := atomic.LoadUint64(&at.SpanID); atomic.LoadUint64(&at.Owner)&mask == bucket {
		r.blank(at, id)
	}
	goruntime.Unpin()
}

// Shows reports whether a slot showed the span with this id just now.
func (r *Ring) Shows(slot uint32, spanID uint64) bool {
	return atomic.LoadUint64(&r.at(uint64(slot)).SpanID) == spanID
}

// Own returns the slot of the calling thread or goroutine and the id of that
// goroutine. The thread may be another one when it returns.
func (r *Ring) Own() (slot uint32, goid uint64) {
	self := r.runtime.Self()
	n := uint64(self.TID)
	if r.byGoroutine == 1 {
		n = self.Goid
	}
	return uint32(n & r.mask), self.Goid
}

// ShownBy returns the id of the span that a slot shows if a goroutine is its owner,
// else 0, also if a writer holds on to the slot. In layout 1 everybody is the owner.
func (r *Ring) ShownBy(slot uint32, goid uint64) uint64 {
	at := r.at(uint64(slot))
	if r.layout1 {
		return atomic.LoadUint64(&at.SpanID)
	}
	for range attempts {
		state := atomic.LoadUint64(&at.State)
		id, owner := atomic.LoadUint64(&at.SpanID), atomic.LoadUint64(&at.Owner)
		if state&wire.SlotInUse != 0 || atomic.LoadUint64(&at.State) != state {
			continue
		}
		if owner != goid {
			return 0
		}
		return id
	}
	return 0
}

var nothing Span

// at returns a slot. Layouts 1 and 2 share the fields that Shows looks at.
func (r *Ring) at(n uint64) *wire.Slot2 {
	// Sound: n is at most mask, and the memory never goes away. That the shift is less than 64
	// spares the check that Go's shifts have.
	return (*wire.Slot2)(unsafe.Add(r.base, (n&r.mask)<<(r.shift&63)))
}

// enter has the pinned thread with this id take part in a slot: as the only one to
// store there if nobody else has so far, else as one of several. It reports whether the
// thread may claim the slot now.
func (r *Ring) enter(at *wire.Slot2, tid uint32) bool {
	if r.entered(at, tid) {
		return true
	}
	// Sound: the id and what is said of sharing are neighbours and 8-byte aligned.
	holder := (*uint64)(unsafe.Pointer(&at.TID))
	if atomic.LoadUint64(holder) == 0 && atomic.CompareAndSwapUint64(holder, 0, uint64(tid)) {
		return true
	}
	return r.share(at)
}

// entered reports whether the pinned thread with this id may claim a slot.
func (r *Ring) entered(at *wire.Slot2, tid uint32) bool {
	if r.exclusive == 0 {
		return true
	}
	sharing := atomic.LoadUint32(&at.Sharing)
	return sharing&shared != 0 || sharing&revoked == 0 && atomic.LoadUint32(&at.TID) == tid
}

// share ends it that one thread has a slot to itself, and reports whether it could.
//
// That thread says that it is writing, and then looks whether it still may; here it is
// said that it may not, and then looked whether the thread is writing. Between the two
// there is a barrier on both sides, of which the thread does not know: either it has
// seen that it may not, or it is seen writing.
func (r *Ring) share(at *wire.Slot2) bool {
	if !membarrier.Ready() {
		return false // and the thread keeps the slot
	}
	atomic.OrUint32(&at.Sharing, revoked)
	if !membarrier.Private() {
		return false
	}
	for range attempts {
		if atomic.LoadUint32(&at.Sharing)&writing == 0 {
			atomic.OrUint32(&at.Sharing, shared)
			return true
		}
	}
	return false
}

func (r *Ring) claim(at *wire.Slot2) bool {
	for range attempts {
		state := atomic.LoadUint64(&at.State)
		if state&wire.SlotInUse == 0 && atomic.CompareAndSwapUint64(&at.State, state, state+r.claimed) {
			return true
		}
	}
	return false
}

// blank has a slot show nothing if it shows the span with this id, and reports whether
// it did. It is for who could not claim the slot: the writer that holds it may be one
// that lets go without having written, and what is outdated by now must not be shown
// again; or the slot is another thread's.
//
// Without a claim it is sound because the whole of it is one step to the id of
// nothing. If the holder stores an id still, that counts; if it has stored one, that
// is not the one looked for, or is a missing span instead of a wrong one. A reader
// that has looked at the other fields already sees the id from before or none.
func (r *Ring) blank(at *wire.Slot2, spanID uint64) bool {
	return atomic.CompareAndSwapUint64(&at.SpanID, spanID, 0)
}

// release gives a claimed slot back as it was, but for the count.
func (r *Ring) release(at *wire.Slot2) {
	atomic.StoreUint64(&at.State, at.State&^wire.SlotInUse)
}

// owner returns who published what a claimed slot shows.
func (r *Ring) owner(at *wire.Slot2) goruntime.Self {
	if r.layout1 {
		return goruntime.Self{}
	}
	return goruntime.Self{Goid: at.Owner, M: uintptr(at.M), TID: at.TID}
}

// write fills a claimed slot and gives it free.
func (r *Ring) write(at *wire.Slot2, s *Span, owner goruntime.Self) {
	if r.layout1 {
		fill1(at, s.TraceIDHigh, s.TraceIDLow, s.SpanID, at.State&^wire.SlotInUse)
		return
	}
	state := at.State>>wire.SlotSeqShift<<wire.SlotSeqShift | uint64(s.TraceFlags)<<wire.SlotTraceFlagsShift
	if len(s.Attributes) > 0 && r.attributes > 0 {
		fence()
		// Sound: the slot goes on for r.attributes bytes behind its fields.
		n := fit(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(at), wire.SlotAttributes)), r.attributes), s.Attributes)
		state |= uint64(n) << wire.SlotAttrsSizeShift
	}
	fill(at, s.TraceIDHigh, s.TraceIDLow, s.SpanID, s.LocalRootSpanID,
		owner.Goid, uint64(owner.M), owner.TID, state)
}

// fit copies encoded attributes, or if there is not room for all of them those for which
// there is, and returns how many bytes that is.
func fit(to, attributes []byte) (n int) {
	if n = len(attributes); n <= len(to) {
		// The rest of the last word goes along, as by assembly.
		copy(to, attributes[:min(cap(attributes), (n+7)&^7)])
		return n
	}
	n = 0
	for len(attributes) >= 2 {
		size := 2 + int(attributes[1])
		if size > len(attributes) {
			break
		}
		if size <= len(to)-n {
			n += copy(to[n:], attributes[:size])
		}
		attributes = attributes[size:]
	}
	return n
}
