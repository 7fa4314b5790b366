// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spans

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/reader"
)

// write writes spans or groups as text.
func (c *Command) write(w io.Writer, l display.Layout, d *Document) error {
	out := bufio.NewWriter(w)
	title := publication.Title(d.PID, d.Service)
	if c.Group {
		goroutines := 0
		for i := range d.Groups {
			goroutines += d.Groups[i].Goroutines
		}
		_, _ = out.WriteString(l.Heading(title, fmt.Sprintf(": goroutines in live spans: %d, different stacks: %d", goroutines, d.Found)))
		for i := range d.Groups {
			_, _ = out.Write(appendGroup(nil, l, &d.Groups[i], d.stacks))
		}
	} else {
		_, _ = out.WriteString(l.Heading(title, fmt.Sprintf(": live spans: %d", d.Found)))
		if c.Stacks {
			writeSpanStacks(out, l, d)
		} else {
			_, _ = out.Write(appendSpanTable(nil, l, d.Spans))
		}
	}
	if more := d.Found - len(d.Spans) - len(d.Groups); more > 0 {
		_, _ = fmt.Fprintf(out, "  … and %d more\n", more)
	}
	for _, m := range d.Missing {
		for _, line := range l.Hang("Not known: ", display.Escape(m)) {
			_, _ = fmt.Fprintln(out, line)
		}
	}
	return out.Flush() // returns the first error
}

// columns are the columns of the table of spans.
var columns = []display.Column{
	{Head: "  AGE"},
	{Head: columnState, Spare: 2},
	{Head: display.ColumnWaitingFor, Min: 48},
	{Head: display.ColumnName, Min: 16},
	{Head: display.ColumnEndpoint, Min: 16, Spare: 3},
	{Head: columnGoroutine, Spare: 5},
	{Head: display.ColumnTraceID},
	{Head: display.ColumnSpanID, Spare: 6},
	{Head: display.ColumnLocalRoot},
	{Head: columnSampled},
	{Head: display.ColumnAttributes, Min: 20, Spare: 4},
}

const (
	columnState     = "STATE"
	columnGoroutine = "GOROUTINE"
	columnSampled   = "SAMPLED"
)

func appendSpanTable(out []byte, l display.Layout, spans []Span) []byte {
	if len(spans) == 0 {
		return out
	}
	// Empty columns and columns for --wide are left out.
	empty := map[string]bool{
		display.ColumnName:      !slices.ContainsFunc(spans, func(s Span) bool { return s.Name != "" || s.Endpoint != "" }),
		display.ColumnLocalRoot: !l.Wide,
		columnSampled:           !l.Wide,
		display.ColumnAttributes: !slices.ContainsFunc(spans, func(s Span) bool {
			return len(s.Attributes) > 0 || slices.ContainsFunc(s.Joined, func(j Joined) bool { return len(j.Attributes) > 0 })
		}),
	}
	empty[display.ColumnEndpoint] = empty[display.ColumnName]
	var rows [][]string
	below := map[int]string{} // lines below the rows
	held := map[string]bool{} // locks whose holders have a line
	addRow := func(g *goroutineDocument, row ...string) {
		rows = append(rows, row)
		if text := g.Lock.HeldUpBy(l); text != "" && !held[g.Lock.ID] {
			held[g.Lock.ID] = true
			below[len(rows)] = text
		}
	}
	for i := range spans {
		s := &spans[i]
		localRoot, sampled := "-", "no"
		if s.LocalRootSpanID != "" {
			localRoot = l.ID(s.LocalRootSpanID)
		}
		if s.Sampled {
			sampled = "yes"
		}
		addRow(&s.goroutineDocument,
			"  "+spanAgeText(time.Duration(s.AgeNano)), s.State, s.waitingText(l), display.Name(s.Name), display.Name(s.Endpoint),
			goroutineText(s.Goroutine), l.ID(s.TraceID), l.ID(s.SpanID), localRoot, sampled, display.Attributes(s.Attributes),
		)
		for i := range s.Joined {
			j := &s.Joined[i]
			addRow(&j.goroutineDocument, "", j.State, j.waitingText(l), "", "", goroutineText(j.Goroutine), "", "", "", "", display.Attributes(j.Attributes))
		}
	}
	table := l.Table(display.Without(slices.Clone(columns), rows, func(c *display.Column) bool { return empty[c.Head] }))
	row := 0 // 0 is the head
	for line := range bytes.Lines(table) {
		out = append(out, line...)
		if text, ok := below[row]; ok {
			for _, line := range l.Hang("       ", text) {
				out = append(append(out, line...), '\n')
			}
		}
		row++
	}
	return out
}

func goroutineText(id uint64) string {
	if id == 0 {
		return "-"
	}
	return strconv.FormatUint(id, 10)
}

const goneText = "(goroutine has exited)"

// waitingText describes what a span waits for, and where.
func (s *Span) waitingText(l display.Layout) string {
	switch s.Leaked {
	case string(waiting.Exited):
		return goneText
	case string(waiting.MovedOn):
		return s.goroutineDocument.waitingText(l) + " (goroutine has moved on)"
	}
	if s.State == reader.GoroutineGone.String() {
		return goneText
	}
	return s.goroutineDocument.waitingText(l)
}

func (g *goroutineDocument) waitingText(l display.Layout) string {
	text := display.Escape(g.WaitingFor)
	if text == "" && g.OwnTID != 0 {
		text = "thread " + strconv.Itoa(g.OwnTID)
	}
	if g.Socket != nil {
		text += " on " + g.Socket.String()
	}
	if g.Frame != nil {
		text = strings.TrimPrefix(text+" in ", " ") + g.Frame.Text(l)
	}
	if g.Lock != nil && g.Lock.Goroutines > 1 {
		text += fmt.Sprintf(", with %d others", g.Lock.Goroutines-1)
	}
	if len(g.Channels) == 1 && g.Channels[0].Capacity > 0 {
		text += fmt.Sprintf(", %d of %d buffered", g.Channels[0].Buffered, g.Channels[0].Capacity)
	}
	if text == "" {
		return "-"
	}
	return text
}

// writeSpanStacks writes each span with the stacks of its goroutines. The stack of a goroutine in
// several spans appears once.
func writeSpanStacks(w *bufio.Writer, l display.Layout, d *Document) {
	shown := map[uint64]bool{}
	appendStack := func(out []byte, id uint64, index int) []byte {
		if id != 0 && shown[id] {
			return append(out, "    (the stack is shown above)\n"...)
		}
		shown[id] = true
		stack := d.stacks.take(index)
		return stack.Append(out, l)
	}
	for i := range d.Spans {
		s := &d.Spans[i]
		out := s.appendState(fmt.Appendf(nil, "\n%s  ", spanAgeText(time.Duration(s.AgeNano))))
		if s.Leaked == string(waiting.MovedOn) {
			out = append(out, ", goroutine has moved on"...)
		}
		out = append(out, '\n')
		if s.Name != "" {
			out = fmt.Appendf(out, "  span %s", display.Key(s.Name))
			if s.Endpoint != "" && s.Endpoint != s.Name {
				out = fmt.Appendf(out, " of %s", display.Key(s.Endpoint))
			}
			out = append(out, '\n')
		}
		out = fmt.Appendf(out, "  trace %s span %s goroutine %s\n", l.ID(s.TraceID), l.ID(s.SpanID), goroutineText(s.Goroutine))
		out = s.appendObjects(out, l)
		out = appendStack(appendSpanAttributes(out, s.Attributes), s.Goroutine, s.index)
		for j := range s.Joined {
			g := &s.Joined[j]
			out = g.appendState(fmt.Appendf(out, "  also goroutine %d  ", g.Goroutine))
			out = g.appendObjects(append(out, '\n'), l)
			out = appendStack(appendSpanAttributes(out, g.Attributes), g.Goroutine, g.index)
		}
		if _, err := w.Write(out); err != nil {
			return
		}
	}
}

// appendState appends the state, the wait and the thread.
func (g *goroutineDocument) appendState(out []byte) []byte {
	out = append(out, g.State...)
	if g.WaitingFor != "" {
		out = fmt.Appendf(out, ": %s", display.Escape(g.WaitingFor))
	}
	if g.Socket != nil {
		out = fmt.Appendf(out, " on %s", g.Socket)
	}
	if g.WaitedAtLeastNano > int64(time.Second) {
		out = fmt.Appendf(out, " for at least %s", display.Age(time.Duration(g.WaitedAtLeastNano)))
	}
	if g.OwnTID != 0 {
		out = fmt.Appendf(out, ", thread %d", g.OwnTID)
	}
	return out
}

// appendObjects appends a line about the lock or the channel. It leaves out the channels of a select statement.
func (g *goroutineDocument) appendObjects(out []byte, l display.Layout) []byte {
	if len(g.Channels) == 1 {
		return g.Channels[0].Append(out)
	}
	return g.Lock.Append(out, l)
}

func appendSpanAttributes(out []byte, attributes map[string]string) []byte {
	if len(attributes) == 0 {
		return out
	}
	return fmt.Appendf(out, "  attributes %s\n", display.Attributes(attributes))
}

func appendGroup(out []byte, l display.Layout, g *Group, stacks *stackReader) []byte {
	out = fmt.Appendf(out, "\n%d  %s", g.Goroutines, g.State)
	if g.WaitingFor != "" {
		out = fmt.Appendf(out, ": %s", display.Escape(g.WaitingFor))
	}
	out = fmt.Appendf(out, ", oldest span %s\n", spanAgeText(time.Duration(g.OldestAgeNano)))
	if names := display.Counts(g.Names); names != "" {
		out = fmt.Appendf(out, "  spans: %s\n", names)
	}
	if sockets := display.Counts(g.Sockets); sockets != "" {
		out = fmt.Appendf(out, "  sockets: %s\n", sockets)
	}
	out = g.Lock.Append(out, l)
	stack := stacks.take(g.index)
	return stack.Append(out, l)
}

// spanAgeText is like [display.Age], but returns an age below a second in milliseconds.
func spanAgeText(d time.Duration) string {
	if d < time.Second {
		return d.Truncate(time.Millisecond).String()
	}
	return display.Age(d)
}
