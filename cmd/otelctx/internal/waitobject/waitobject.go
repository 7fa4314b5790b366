// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package waitobject describes the objects that goroutines wait for in the output of otelctx.
package waitobject

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/reader"
)

// Lock is a lock and the goroutines that wait for it.
type Lock struct {
	// ID identifies the lock in the process.
	ID string `json:"id"`
	// Goroutines is the number of goroutines that wait for the lock.
	Goroutines int `json:"goroutines"`
	// LongestGoroutine is the one that is known to have waited longest, for LongestWaitedAtLeastNano. Both are 0 if that
	// is unknown.
	LongestGoroutine         uint64 `json:"longest_goroutine"`
	LongestWaitedAtLeastNano int64  `json:"longest_waited_at_least_nano"`
	// PossibleHolders begins with the goroutine that probably holds the lock, followed by the one that probably holds the
	// lock that this one waits for, and so on. It is empty if that is unknown. LikelyDeadlock says that the last one waits
	// for a lock that is held by one of them, or by a goroutine that waits for this lock.
	PossibleHolders []Holder `json:"possible_holders"`
	LikelyDeadlock  bool     `json:"likely_deadlock"`

	cycle uint64 // the goroutine with which a deadlock begins again
}

// NewLock describes the lock that g waits for. It returns nil if l is nil.
func NewLock(g *waiting.Goroutine, l *waiting.Lock) *Lock {
	if l == nil {
		return nil
	}
	return &Lock{
		ID: fmt.Sprintf("%#x", g.Wait.Lock), Goroutines: l.Goroutines, LongestGoroutine: l.Longest, LongestWaitedAtLeastNano: int64(l.Waited),
		PossibleHolders: []Holder{},
	}
}

// Append appends lines about the lock and its possible holders, or nothing if l is nil.
func (l *Lock) Append(out []byte, layout display.Layout) []byte {
	if l == nil {
		return out
	}
	out = fmt.Appendf(out, "  lock: goroutines waiting for it: %d", l.Goroutines)
	if l.LongestWaitedAtLeastNano > int64(time.Second) {
		out = fmt.Appendf(out, ", goroutine %d for at least %s", l.LongestGoroutine, display.Age(time.Duration(l.LongestWaitedAtLeastNano)))
	}
	out = append(out, '\n')
	if text := l.HeldUpBy(layout); text != "" {
		out = fmt.Appendf(out, "  %s\n", text)
	}
	return out
}

// Channel is a channel and the goroutines that wait for it.
type Channel struct {
	// ID identifies the channel in the process.
	ID string `json:"id"`
	// Buffered is the number of values in the buffer, and Capacity the size of the buffer.
	Buffered uint64 `json:"buffered"`
	Capacity uint64 `json:"capacity"`
	// Receivers, Senders and Selecting are the numbers of goroutines that wait to receive, to send and in a select
	// statement.
	Receivers int `json:"receivers"`
	Senders   int `json:"senders"`
	Selecting int `json:"selecting"`
}

// NewChannel describes a channel.
func NewChannel(c reader.Channel, w waiting.ChannelWaiters) *Channel {
	return &Channel{fmt.Sprintf("%#x", c.Address), c.Buffered, c.Capacity, w.Receivers, w.Senders, w.Selecting}
}

// Append appends a line about the channel, or nothing if c is nil.
func (c *Channel) Append(out []byte) []byte {
	if c == nil {
		return out
	}
	return fmt.Appendf(out, "  channel: %d of %d buffered, goroutines waiting to receive: %d, to send: %d, in select: %d\n",
		c.Buffered, c.Capacity, c.Receivers, c.Senders, c.Selecting)
}

// Socket is a TCP socket.
type Socket struct {
	// Local is the address of the socket, and Peer that of the other end, or "" if the socket listens.
	Local string `json:"local"`
	Peer  string `json:"peer"`

	text string
}

// NewSocket describes a socket. It returns nil if known is false.
func NewSocket(s waiting.Socket, known bool) *Socket {
	if !known {
		return nil
	}
	d := &Socket{Local: s.Local.String(), text: s.String()}
	if s.Peer != (netip.AddrPort{}) {
		d.Peer = s.Peer.String()
	}
	return d
}

// String returns the other end, or the address at which the socket listens.
func (s *Socket) String() string { return s.text }
