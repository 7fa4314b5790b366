// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/otelctx/otelctx/reader"
)

// others describes the goroutines that wait for the same locks and channels, whether they are in spans or not, and the
// sockets that goroutines wait for.
type others struct {
	locks    map[uint64]*Lock
	channels map[uint64]*ChannelWaiters
	sockets  map[uint64]Socket // by goroutine id
	// writers and readers are the goroutines that write and read the connections of HTTP/1 clients. writers are by the
	// channels that they wait for, and readers by the goroutine that started them.
	writers map[uint64][]reader.Goroutine
	readers map[uint64][]reader.Goroutine

	holders
}

// Lock describes the goroutines that wait for a lock.
type Lock struct {
	// Goroutines is their number.
	Goroutines int
	// Longest is the id of the one that is known to have waited longest, for Waited at least. Both are 0 if that is
	// unknown.
	Longest uint64
	Waited  time.Duration
}

// ChannelWaiters counts the goroutines that wait for a channel.
type ChannelWaiters struct {
	// Receivers and Senders wait for it alone, and Selecting in a select statement.
	Receivers, Senders, Selecting int
}

func newOthers() *others {
	return &others{
		locks: map[uint64]*Lock{}, channels: map[uint64]*ChannelWaiters{}, sockets: map[uint64]Socket{},
		writers: map[uint64][]reader.Goroutine{}, readers: map[uint64][]reader.Goroutine{},
		holders: holders{
			candidates: map[uint64][]candidate{}, waiters: map[uint64][]reader.Goroutine{}, proven: map[uint64]*Occupant{},
		},
	}
}

// The function that starts the goroutines that write and read a connection of an HTTP/1 client, and the one that waits
// for the response.
const (
	httpDial    = "net/http.(*Transport).dialConn"
	httpRequest = "net/http.(*persistConn).roundTrip"
)

// add adds a goroutine.
func (o *others) add(p *Program, g *reader.Goroutine) {
	if lock := g.Wait.Lock; lock != 0 {
		l := o.locks[lock]
		if l == nil {
			l = new(Lock)
			o.locks[lock] = l
		}
		l.Goroutines++
		if g.WaitedFor > l.Waited {
			l.Longest, l.Waited = g.ID, g.WaitedFor
		}
	}
	channels := g.Wait.Channels
	for i, channel := range channels {
		if slices.ContainsFunc(channels[:i], func(c reader.Channel) bool { return c.Address == channel.Address }) {
			continue // It has several cases.
		}
		c := o.channels[channel.Address]
		if c == nil {
			c = new(ChannelWaiters)
			o.channels[channel.Address] = c
		}
		switch g.WaitReason {
		case "chan receive":
			c.Receivers++
		case "chan send":
			c.Senders++
		default:
			c.Selecting++
		}
	}
	if g.Creator == 0 || len(channels) == 0 && !g.Wait.Polled {
		return
	}
	if function, _, _ := p.code.Frame(g.CreatedAt); function != httpDial {
		return
	}
	if g.Wait.Polled {
		o.readers[g.Creator] = append(o.readers[g.Creator], *g)
	}
	for _, channel := range channels {
		o.writers[channel.Address] = append(o.writers[channel.Address], *g)
	}
}

// findOthers reads the goroutines that are not in the snapshot, if one in the snapshot waits for a lock or a channel,
// and looks up sockets.
func (p *Process) findOthers(ctx context.Context, snap *Snapshot) error {
	o := newOthers()
	snap.others = o
	known := make(map[reader.GoroutineRef]bool, len(snap.Goroutines))
	needed, locked := false, false
	for i := range snap.Goroutines {
		g := &snap.Goroutines[i]
		known[g.GoroutineRef] = true
		needed = needed || g.Wait.Lock != 0 || len(g.Wait.Channels) > 0
		locked = locked || waitsForMutex(&g.Goroutine)
		o.add(snap.Program, &g.Goroutine)
	}
	if locked {
		snap.Program.code.finder.Reset()
	}
	if needed {
		if err := p.readOthers(ctx, snap, known, locked); err != nil {
			return err
		}
	}
	if locked {
		for i := range snap.Goroutines {
			occupant := &Occupant{Goroutine: snap.Goroutines[i]}
			if in := occupant.In; in >= 0 {
				occupant.Span = &SpanNames{snap.Spans[in].Name, snap.Spans[in].Endpoint}
			}
			o.holders.add(snap.Program, occupant)
		}
		missing, err := p.proveHolders(ctx, snap.Program, &o.holders)
		if err != nil {
			return err
		}
		if missing != nil {
			snap.Missing = append(snap.Missing, missing)
		}
	}
	polls := o.holderPolls(snap.Program)
	for i := range snap.Goroutines {
		g := &snap.Goroutines[i]
		if g.Wait.Polled {
			polls = append(polls, newPoll(&g.Goroutine, g.ID))
		} else if r, ok := o.connection(snap.Program, g); ok {
			polls = append(polls, newPoll(&r, g.ID))
		}
	}
	return p.findSockets(ctx, o, polls)
}

// readOthers reads the goroutines that are not known, with their stacks if holders of locks are wanted.
func (p *Process) readOthers(ctx context.Context, snap *Snapshot, known map[reader.GoroutineRef]bool, holders bool) error {
	refs, err := p.process.AllGoroutines(ctx)
	if errors.Is(err, reader.ErrNoGoroutineList) {
		snap.Missing = append(snap.Missing, fmt.Errorf("other goroutines that wait for the same: %w", err))
		return nil
	}
	if err != nil {
		return err
	}
	refs = slices.DeleteFunc(refs, func(ref reader.GoroutineRef) bool { return known[ref] })
	for batch := range slices.Chunk(refs, everyBatch) {
		found, err := p.process.Goroutines(ctx, batch, reader.GoroutineOptions{Stacks: holders, Details: true, Code: snap.Program.code})
		if err != nil {
			return err
		}
		for i := range found.Goroutines {
			g := &found.Goroutines[i]
			snap.add(snap.Program, g)
			if holders {
				snap.holders.add(snap.Program, &Occupant{Goroutine: Goroutine{Goroutine: *g, In: -1}})
			}
		}
	}
	return nil
}

// connection returns the goroutine that reads the connection of an HTTP/1 client on which g waits for a response. g
// waits, among others, for the channel that is closed with the connection. The connection's writer waits for that, too,
// and has been started by the same goroutine as its reader, which has started no others.
func (o *others) connection(p *Program, g *Goroutine) (reader.Goroutine, bool) {
	if len(o.writers) == 0 || g.WaitReason != "select" || !slices.ContainsFunc(g.Stack, func(pc uint64) bool {
		function, _, _ := p.code.Frame(pc)
		return function == httpRequest
	}) {
		return reader.Goroutine{}, false
	}
	var writers []reader.Goroutine
	for _, channel := range g.Wait.Channels {
		writers = append(writers, o.writers[channel.Address]...)
	}
	if len(writers) != 1 {
		return reader.Goroutine{}, false
	}
	readers := o.readers[writers[0].Creator]
	if len(readers) != 1 {
		return reader.Goroutine{}, false
	}
	return readers[0], true
}

// poll is the wait of a goroutine for a descriptor.
type poll struct {
	reader.GoroutineRef

	descriptor int
	writing    bool
	// caller is the id of the goroutine that waits for this one, or its own.
	caller uint64
}

func newPoll(g *reader.Goroutine, caller uint64) poll {
	return poll{g.GoroutineRef, g.Wait.Descriptor, g.Wait.Writing, caller}
}

// findSockets looks up the sockets of goroutines that wait for a descriptor. It reads these goroutines again, because
// only a descriptor that a goroutine still waits for cannot be that of another file by now.
func (p *Process) findSockets(ctx context.Context, o *others, polls []poll) error {
	if len(polls) == 0 {
		return nil
	}
	descriptors := map[int]bool{}
	for _, w := range polls {
		descriptors[w.descriptor] = true
	}
	found := sockets(p.pid, descriptors)
	for batch := range slices.Chunk(polls, everyBatch) {
		refs := make([]reader.GoroutineRef, len(batch))
		for i, w := range batch {
			refs[i] = w.GoroutineRef
		}
		again, err := p.process.Goroutines(ctx, refs, reader.GoroutineOptions{Details: true})
		if err != nil {
			return err
		}
		for i, w := range batch {
			g := &again.Goroutines[i]
			if s, ok := found[w.descriptor]; ok && g.Wait.Polled && newPoll(g, w.caller) == w {
				o.sockets[w.caller] = s
			}
		}
	}
	return nil
}

// Lock returns the goroutines that wait for the same lock as g, including g, or nil if g waits for none.
func (o *others) Lock(g *Goroutine) *Lock {
	if o == nil {
		return nil
	}
	return o.locks[g.Wait.Lock]
}

// Channel returns the goroutines that wait for a channel.
func (o *others) Channel(c reader.Channel) ChannelWaiters {
	if o == nil || o.channels[c.Address] == nil {
		return ChannelWaiters{}
	}
	return *o.channels[c.Address]
}

// Socket returns the socket for which g waits, or on which the HTTP/1 client waits that g has called. It returns false
// if there is none or it is unknown.
func (o *others) Socket(g *Goroutine) (Socket, bool) {
	if o == nil {
		return Socket{}, false
	}
	s, ok := o.sockets[g.ID]
	return s, ok
}
