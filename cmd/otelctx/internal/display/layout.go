// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package display

import (
	"bytes"
	"slices"
	"strings"

	"github.com/rivo/uniseg"
)

// These are the heads of columns that occur in several tables.
const (
	ColumnService    = "SERVICE"
	ColumnTraceID    = "TRACE ID"
	ColumnSpanID     = "SPAN ID"
	ColumnLocalRoot  = "LOCAL ROOT"
	ColumnWaitingFor = "WAITING FOR"
	ColumnEndpoint   = "ENDPOINT"
	ColumnName       = "NAME"
	ColumnAttributes = "ATTRIBUTES"
)

// A Layout fits text to the terminal, or to whatever else shows it. The zero value is for files and pipes: lines have any
// length and no colours.
type Layout struct {
	// Width is the number of characters in a line, or 0 if lines may have any length.
	Width int
	// Colours reports whether text may have colours.
	Colours bool
	// Wide asks for all columns and for whole ids and paths.
	Wide bool
}

// Style is how a piece of text looks on a terminal: a parameter of ECMA-48's SGR sequence. The zero value is plain text.
type Style string

// Titles of tables are bold, and their heads dim. Colours mark large numbers and broken rules.
const (
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Yellow Style = "33"
)

// Styled returns text in a style.
func (l Layout) Styled(s Style, text string) string {
	if !l.Colours || s == "" || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Heading returns the first lines of a command's output: a title and what follows it in the same line.
func (l Layout) Heading(title, rest string) string {
	text := strings.Join(l.Hang("", title+rest), "\n") + "\n"
	if short, ok := strings.CutPrefix(text, title); ok {
		return l.Styled(Bold, title) + short
	}
	return text
}

// ID returns the first eight digits of a hexadecimal id, which suffice to tell ids apart, or all of them if the layout is
// wide.
func (l Layout) ID(id string) string {
	const digits = 8
	if l.Wide || len(id) < digits {
		return id
	}
	return id[:digits]
}

// Column describes a column of a table.
type Column struct {
	// Head is the first line of the column. A table in which no column has a head has no such line.
	Head string
	// Min is the number of characters to which cells may be shortened if the table is wider than the terminal. 0: cells are
	// never shortened.
	Min int
	// KeepEnd reports whether shortened cells keep their end, such as the last part of a path, instead of their beginning.
	KeepEnd bool
	// Spare columns are left out if the table is too wide even with shortened cells, those with the largest number first. 0:
	// the column is always there.
	Spare int
	// Style returns the style of a cell, given the index of its row. It may be nil.
	Style func(row int) Style
}

// Without returns a table without the columns for which leaveOut returns true.
func Without(columns []Column, rows [][]string, leaveOut func(*Column) bool) ([]Column, [][]string) {
	for i := len(columns) - 1; i >= 0; i-- {
		if !leaveOut(&columns[i]) {
			continue
		}
		columns = slices.Delete(columns, i, i+1)
		for r := range rows {
			if i < len(rows[r]) {
				rows[r] = slices.Delete(rows[r], i, i+1)
			}
		}
	}
	return columns, rows
}

// Heads returns the heads of the columns that Table would show.
func (l Layout) Heads(columns []Column, rows [][]string) (heads []string) {
	for _, i := range l.fit(columns, widthsOf(columns, rows)) {
		heads = append(heads, columns[i].Head)
	}
	return heads
}

// widthsOf returns the widths at which columns show all cells in full.
func widthsOf(columns []Column, rows [][]string) []int {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = uniseg.StringWidth(c.Head)
	}
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], uniseg.StringWidth(cell))
		}
	}
	return widths
}

// columnGap separates two columns.
const columnGap = "  "

// Table aligns the cells of rows in columns. Rows may have fewer cells than there are columns. Cells must not contain tabs,
// line breaks or colours.
func (l Layout) Table(columns []Column, rows [][]string) []byte {
	widths := widthsOf(columns, rows)
	shown := l.fit(columns, widths)
	var out bytes.Buffer
	if slices.ContainsFunc(columns, func(c Column) bool { return c.Head != "" }) {
		heads := make([]string, len(columns))
		for i, c := range columns {
			heads[i] = c.Head
		}
		out.WriteString(l.Styled(Dim, line(columns, widths, shown, heads, nil)) + "\n")
	}
	for i, row := range rows {
		out.WriteString(line(columns, widths, shown, row, func(c *Column, text string) string {
			if c.Style == nil {
				return text
			}
			return l.Styled(c.Style(i), text)
		}) + "\n")
	}
	return out.Bytes()
}

// line returns a line of a table. It pads all cells but the last one.
func line(columns []Column, widths, shown []int, cells []string, styled func(*Column, string) string) string {
	var b strings.Builder
	padding := 0
	for n, i := range shown {
		if i >= len(cells) {
			break
		}
		if n > 0 {
			b.WriteString(strings.Repeat(" ", padding) + columnGap)
		}
		text := shorten(cells[i], widths[i], columns[i].KeepEnd)
		padding = widths[i] - uniseg.StringWidth(text)
		if styled != nil {
			text = styled(&columns[i], text)
		}
		b.WriteString(text)
	}
	return strings.TrimRight(b.String(), " ")
}

// fit returns the indexes of the columns that the terminal has space for, and reduces their widths accordingly.
func (l Layout) fit(columns []Column, widths []int) (shown []int) {
	least := make([]int, len(columns))
	excess := -l.Width - len(columnGap)
	for i, c := range columns {
		shown = append(shown, i)
		least[i] = widths[i]
		if c.Min > 0 {
			least[i] = min(widths[i], max(c.Min, uniseg.StringWidth(c.Head)))
		}
		excess += least[i] + len(columnGap)
	}
	if l.Width == 0 {
		return shown
	}
	for excess > 0 {
		spare := slices.MaxFunc(shown, func(i, j int) int { return columns[i].Spare - columns[j].Spare })
		if columns[spare].Spare == 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == spare })
		excess -= least[spare] + len(columnGap)
	}
	// Give the space that is left to the columns, one character after another, the narrowest first.
	full := slices.Clone(widths)
	copy(widths, least)
	for left := -excess; left > 0; left-- {
		narrowest := -1
		for _, i := range shown {
			if widths[i] < full[i] && (narrowest < 0 || widths[i] < widths[narrowest]) {
				narrowest = i
			}
		}
		if narrowest < 0 {
			break
		}
		widths[narrowest]++
	}
	return shown
}

// shorten returns text that is at most width characters wide. An ellipsis marks what is left out. The indentation stays.
func shorten(text string, width int, keepEnd bool) string {
	if content := strings.TrimLeft(text, " "); len(content) < len(text) {
		indent := len(text) - len(content)
		return text[:indent] + shorten(content, max(width-indent, 0), keepEnd)
	}
	excess := uniseg.StringWidth(text) - width
	if excess <= 0 {
		return text
	}
	excess++ // for the ellipsis
	kept := 0
	for rest, state := text, -1; rest != ""; {
		var cluster string
		var size int
		cluster, rest, size, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if keepEnd {
			if excess -= size; excess <= 0 {
				return "…" + rest
			}
			continue
		}
		if kept += size; kept > width-1 {
			return text[:len(text)-len(rest)-len(cluster)] + "…"
		}
	}
	return "…"
}

// Hang returns head and text, broken into lines that fit. All lines but the first are indented by the width of head.
func (l Layout) Hang(head, text string) (lines []string) {
	indent := uniseg.StringWidth(head)
	if l.Width == 0 {
		return []string{head + text}
	}
	line, used := head, indent
	for word := range strings.FieldsSeq(text) {
		width := uniseg.StringWidth(word)
		switch {
		case used == indent:
		case used+1+width > l.Width:
			lines = append(lines, line)
			line, used = strings.Repeat(" ", indent), indent
		default:
			line += " "
			used++
		}
		line += word
		used += width
	}
	return append(lines, line)
}

// Explain lists terms with their explanations, dimmed.
func (l Layout) Explain(terms [][2]string) (out []byte) {
	longest := 0
	for _, t := range terms {
		longest = max(longest, uniseg.StringWidth(t[0]))
	}
	for _, t := range terms {
		for _, line := range l.Hang("  "+t[0]+strings.Repeat(" ", longest-uniseg.StringWidth(t[0]))+columnGap, t[1]) {
			out = append(out, l.Styled(Dim, line)+"\n"...)
		}
	}
	return out
}
