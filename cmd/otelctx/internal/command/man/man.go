// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package man implements otelctx man: it prints the manual page.
package man

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
)

// Description says what otelctx does, and what it needs.
const Description = `Shows what running services publish for profilers: their OpenTelemetry resource, and the span that each thread ` +
	`is in. Records CPU profiles in which each sample has its span.

Reading another process needs the capability CAP_SYS_PTRACE, or the same user if the kernel's Yama module permits that. ` +
	"Recording also needs CAP_BPF and CAP_PERFMON. Root has all three."

// Command implements otelctx man.
type Command struct{}

// Run is called by kong.
func (*Command) Run(s terminal.Streams, model *kong.Application) error {
	_, err := s.Stdout.Write(Page(model))
	return err
}

// Page returns the manual page in roff, the content of otelctx.1. It is generated from the same model
// as --help, and from the Manual methods of commands.
func Page(model *kong.Application) []byte {
	m := &roff{}
	m.line(`.\" Made by otelctx man.`)
	m.line(`.TH OTELCTX 1 "" otelctx`) // The page has no date, so that it is reproducible.
	m.line(".SH NAME")
	m.line(`otelctx \- see the spans of processes, and record profiles of them`)
	m.line(".SH SYNOPSIS")
	for i, c := range model.Leaves(true) {
		if i > 0 {
			m.line(".br")
		}
		m.line(".B %s", roffText(model.Name+" "+c.Name))
		m.line("%s", roffText(argumentsText(c)))
	}
	m.line(".SH DESCRIPTION")
	m.text(Description)
	m.line(".SH COMMANDS")
	for _, c := range model.Leaves(true) {
		m.line(".SS %s", roffText(model.Name+" "+c.Name))
		m.text(c.Help)
		if c.Detail != "" {
			m.line(".PP")
			m.text(c.Detail)
		}
		if more, ok := reflect.TypeAssert[interface{ Manual() string }](c.Target.Addr()); ok {
			m.line(".PP")
			m.text(more.Manual())
		}
		m.flags(c.Flags)
	}
	m.line(".SH OPTIONS")
	m.flags(model.Flags)
	m.line(".SH EXIT STATUS")
	for _, e := range exitcode.Table {
		m.item(strconv.Itoa(e.Code), e.Text)
	}
	m.line(".PP")
	m.text(exitcode.CommandText)
	return m.Bytes()
}

// argumentsText returns the part of a synopsis that follows the name of the command.
func argumentsText(c *kong.Node) string {
	words := []string{"[FLAGS]"}
	for _, p := range c.Positional {
		words = append(words, p.Summary())
	}
	return strings.Join(words, " ")
}

// roff is a page in the macros of man(7).
type roff struct{ bytes.Buffer }

func (m *roff) line(format string, args ...any) { _, _ = fmt.Fprintf(m, format+"\n", args...) }

// text adds paragraphs, which are separated by empty lines. Paragraphs in capitals become headings, and
// indented ones stay unchanged.
func (m *roff) text(text string) {
	for i, paragraph := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if i > 0 {
			m.line(".PP")
		}
		if strings.ToUpper(paragraph) == paragraph { // a heading
			m.line(".B %s", roffText(paragraph))
			continue
		}
		indented := strings.HasPrefix(paragraph, " ")
		if indented {
			m.line(".nf")
		}
		for line := range strings.SplitSeq(paragraph, "\n") {
			m.line("%s", roffText(line))
		}
		if indented {
			m.line(".fi")
		}
	}
}

func (m *roff) item(name, text string) {
	m.line(".TP")
	m.line(".B %s", roffText(name))
	m.text(text)
}

func (m *roff) flags(flags []*kong.Flag) {
	for _, f := range flags {
		name := "--" + f.Name
		if !f.IsBool() {
			name += "=" + f.FormatPlaceHolder()
		}
		if f.Short != 0 {
			name = fmt.Sprintf("-%c, %s", f.Short, name)
		}
		m.item(name, f.Help)
	}
}

// roffText escapes characters that roff would interpret as a request or an escape.
func roffText(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...").Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
