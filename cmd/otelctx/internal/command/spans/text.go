// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spans

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/reader"
)

// writeFrame writes one snapshot of --watch.
func (c *Command) writeFrame(w io.Writer, d *Document) error {
	if c.JSON {
		return c.writeJSON(w, d, "")
	}
	if terminal.IsTerminal(w) {
		if _, err := io.WriteString(w, terminal.Clear); err != nil {
			return err
		}
		// Lines that have scrolled off the screen cannot be overwritten.
		if left := len(d.Spans) - terminal.MaxLines; left > 0 && !c.Stacks {
			d.Spans = d.Spans[:terminal.MaxLines]
			if err := c.write(w, d); err != nil {
				return err
			}
			_, err := fmt.Fprintf(w, "  and %d more\n", left)
			return err
		}
		return c.write(w, d)
	}
	if err := c.write(w, d); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// write writes spans or groups as text.
func (c *Command) write(w io.Writer, d *Document) error {
	out := bufio.NewWriter(w)
	service := ""
	if d.Service != "" {
		service = " (" + display.Key(d.Service) + ")"
	}
	if c.Group {
		goroutines := 0
		for i := range d.Groups {
			goroutines += d.Groups[i].Goroutines
		}
		_, _ = fmt.Fprintf(out, "Process %d%s: goroutines in live spans: %d, different stacks: %d\n", d.PID, service, goroutines, len(d.Groups))
		for i := range d.Groups {
			_, _ = out.Write(appendGroup(nil, &d.Groups[i], d.stacks))
		}
	} else {
		_, _ = fmt.Fprintf(out, "Process %d%s: live spans: %d\n", d.PID, service, len(d.Spans))
		if c.Stacks {
			writeSpanStacks(out, d)
		} else {
			_, _ = out.Write(appendSpanTable(nil, d.Spans))
		}
	}
	for _, m := range d.Missing {
		_, _ = fmt.Fprintf(out, "Not known: %s\n", display.Escape(m))
	}
	return out.Flush() // returns the first error
}

// named reports whether any span has a name. Most services publish none.
func named(spans []Span) bool {
	return slices.ContainsFunc(spans, func(s Span) bool { return s.Name != "" || s.Endpoint != "" })
}

func appendSpanTable(out []byte, spans []Span) []byte {
	if len(spans) == 0 {
		return out
	}
	rows := [][]string{{"  AGE", "STATE", display.ColumnWaitingFor, "GOROUTINE", display.ColumnTraceID, display.ColumnSpanID, display.ColumnLocalRoot, "SAMPLED"}}
	const nameColumn = 3 // index of the name columns
	withNames := named(spans)
	withAttributes := slices.ContainsFunc(spans, func(s Span) bool {
		return len(s.Attributes) > 0 || slices.ContainsFunc(s.Joined, func(j Joined) bool { return len(j.Attributes) > 0 })
	})
	add := func(row []string, name, endpoint, attributes string) {
		if withNames {
			row = slices.Insert(row, nameColumn, name, endpoint)
		}
		if withAttributes {
			row = append(row, attributes)
		}
		rows = append(rows, row)
	}
	header := rows[0]
	rows = nil
	add(header, display.ColumnName, display.ColumnEndpoint, display.ColumnAttributes)
	for i := range spans {
		s := &spans[i]
		localRoot, sampled := "-", "no"
		if s.LocalRootSpanID != "" {
			localRoot = s.LocalRootSpanID
		}
		if s.Sampled {
			sampled = "yes"
		}
		row := []string{"  " + spanAgeText(time.Duration(s.AgeNano)), s.State, s.waitingText(), goroutineText(s.Goroutine), s.TraceID, s.SpanID, localRoot, sampled}
		add(row, display.Name(s.Name), display.Name(s.Endpoint), display.Attributes(s.Attributes))
		for _, j := range s.Joined {
			add([]string{"", j.State, j.waitingText(), goroutineText(j.Goroutine), "", "", "", ""}, "", "", display.Attributes(j.Attributes))
		}
	}
	return append(out, display.Table(rows)...)
}

func goroutineText(id uint64) string {
	if id == 0 {
		return "-"
	}
	return strconv.FormatUint(id, 10)
}

const goneText = "(goroutine has exited)"

// waitingText describes what a span waits for, and where.
func (s *Span) waitingText() string {
	switch s.Leaked {
	case string(waiting.Exited):
		return goneText
	case string(waiting.MovedOn):
		return s.goroutineDocument.waitingText() + " (goroutine has moved on)"
	}
	if s.State == reader.GoroutineGone.String() {
		return goneText
	}
	return s.goroutineDocument.waitingText()
}

func (g *goroutineDocument) waitingText() string {
	text := display.Escape(g.WaitingFor)
	if text == "" && g.OwnTID != 0 {
		text = "thread " + strconv.Itoa(g.OwnTID)
	}
	if g.Frame != nil {
		text = strings.TrimPrefix(text+" in ", " ") + g.Frame.String()
	}
	if text == "" {
		return "-"
	}
	return text
}

// String returns the function and, if they are known, the last element of the file's path and the line.
func (c *Code) String() string {
	text := display.Escape(c.Function)
	if c.File != "" {
		text += fmt.Sprintf(" (%s:%d)", display.Escape(path.Base(c.File)), c.Line)
	}
	return text
}

// append appends the stack as in Go's own stack traces, which leave out most functions of the
// runtime.
func (s *Stack) append(out []byte) []byte {
	rows := make([][]string, len(s.visible))
	for i, f := range s.visible {
		place := "-"
		if f.File != "" {
			place = fmt.Sprintf("%s:%d", display.Escape(f.File), f.Line)
		}
		rows[i] = []string{"    " + display.Escape(f.Function), place}
	}
	out = append(out, display.Table(rows)...)
	if s.Error != "" {
		out = fmt.Appendf(out, "    (%s)\n", display.Escape(s.Error))
	}
	return out
}

// writeSpanStacks writes each span with the stacks of its goroutines. The stack of a goroutine in
// several spans appears once.
func writeSpanStacks(w *bufio.Writer, d *Document) {
	shown := map[uint64]bool{}
	appendStack := func(out []byte, id uint64, index int) []byte {
		if id != 0 && shown[id] {
			return append(out, "    (the stack is shown above)\n"...)
		}
		shown[id] = true
		stack := d.stacks.take(index)
		return stack.append(out)
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
		out = fmt.Appendf(out, "  trace %s span %s goroutine %s\n", s.TraceID, s.SpanID, goroutineText(s.Goroutine))
		out = appendStack(appendSpanAttributes(out, s.Attributes), s.Goroutine, s.index)
		for j := range s.Joined {
			g := &s.Joined[j]
			out = g.appendState(fmt.Appendf(out, "  also goroutine %d  ", g.Goroutine))
			out = appendStack(appendSpanAttributes(append(out, '\n'), g.Attributes), g.Goroutine, g.index)
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
	if g.WaitedAtLeastNano > int64(time.Second) {
		out = fmt.Appendf(out, " for at least %s", display.Age(time.Duration(g.WaitedAtLeastNano)))
	}
	if g.OwnTID != 0 {
		out = fmt.Appendf(out, ", thread %d", g.OwnTID)
	}
	return out
}

func appendSpanAttributes(out []byte, attributes map[string]string) []byte {
	if len(attributes) == 0 {
		return out
	}
	return fmt.Appendf(out, "  attributes %s\n", display.Attributes(attributes))
}

// maxGroupNames is the maximum number of span names shown for a group.
const maxGroupNames = 5

func appendGroup(out []byte, g *Group, stacks *stackReader) []byte {
	out = fmt.Appendf(out, "\n%d  %s", g.Goroutines, g.State)
	if g.WaitingFor != "" {
		out = fmt.Appendf(out, ": %s", display.Escape(g.WaitingFor))
	}
	out = fmt.Appendf(out, ", oldest span %s\n", spanAgeText(time.Duration(g.OldestAgeNano)))
	names := slices.SortedFunc(maps.Keys(g.Names), func(a, b string) int {
		return cmp.Or(cmp.Compare(g.Names[b], g.Names[a]), strings.Compare(a, b))
	})
	var texts []string
	for i, name := range names {
		if i == maxGroupNames {
			texts = append(texts, fmt.Sprintf("%d others", len(names)-i))
			break
		}
		if name != "" {
			texts = append(texts, fmt.Sprintf("%s (%d)", display.Key(name), g.Names[name]))
		}
	}
	if len(texts) > 0 {
		out = fmt.Appendf(out, "  spans: %s\n", strings.Join(texts, ", "))
	}
	stack := stacks.take(g.index)
	return stack.append(out)
}

// spanAgeText is like ageText, but returns an age below a second in milliseconds.
func spanAgeText(d time.Duration) string {
	if d < time.Second {
		return d.Truncate(time.Millisecond).String()
	}
	return display.Age(d)
}
