// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waitobject

import (
	"fmt"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/callstack"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
)

// Holder is a goroutine that probably holds a lock.
type Holder struct {
	Goroutine uint64 `json:"goroutine"`
	// Span and Endpoint are the names of the span that it is in, and of its local root. They are "" if it is in none.
	Span     string `json:"span"`
	Endpoint string `json:"endpoint"`
	// State is the text of a reader.GoroutineState, and WaitingFor the kind of wait, or "".
	State      string `json:"state"`
	WaitingFor string `json:"waiting_for"`
	// Socket is the TCP socket that it waits for, or nil.
	Socket *Socket `json:"socket"`
	// Frame is the innermost frame of the user's own code, or nil if there is none.
	Frame *callstack.Code `json:"frame"`
}

// SetHolders sets the holders. It does nothing if l is nil.
func (l *Lock) SetHolders(p *waiting.Program, chain []waiting.Holder, cycle uint64) {
	if l == nil {
		return
	}
	for i := range chain {
		h := &chain[i]
		frames := p.Frames(&h.Goroutine)
		d := Holder{
			Goroutine: h.ID, State: h.State.String(), WaitingFor: waiting.Kind(&h.Goroutine, frames),
			Socket: NewSocket(h.Socket, h.SocketKnown), Frame: callstack.User(p, frames),
		}
		if h.Span != nil {
			d.Span, d.Endpoint = h.Span.Name, h.Span.Endpoint
		}
		l.PossibleHolders = append(l.PossibleHolders, d)
	}
	l.LikelyDeadlock, l.cycle = cycle != 0, cycle
}

// HeldUpBy describes the holders in a line, or returns "" if they are unknown.
func (l *Lock) HeldUpBy(layout display.Layout) string {
	if l == nil {
		return ""
	}
	var text strings.Builder
	for i := range l.PossibleHolders {
		h := &l.PossibleHolders[i]
		if i > 0 {
			text.WriteString(", ")
		}
		fmt.Fprintf(&text, "held up by? goroutine %d", h.Goroutine)
		if h.Span != "" {
			fmt.Fprintf(&text, " %q", display.Escape(h.Span))
			if h.Endpoint != "" && h.Endpoint != h.Span {
				fmt.Fprintf(&text, " of %q", display.Escape(h.Endpoint))
			}
		}
		switch {
		case h.Socket != nil:
			text.WriteString(", which waits for " + h.Socket.String())
		case h.WaitingFor != "":
			fmt.Fprintf(&text, ", %s: %s", h.State, display.Escape(h.WaitingFor))
		default:
			text.WriteString(", " + h.State)
		}
		if h.Frame != nil {
			text.WriteString(" in " + h.Frame.Text(layout))
		}
	}
	if l.LikelyDeadlock {
		fmt.Fprintf(&text, ", held up by? goroutine %d: likely deadlock", l.cycle)
	}
	return text.String()
}
