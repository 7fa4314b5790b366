// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package list implements otelctx list.
package list

import (
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/advice"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/hostproc"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/internal/timelimit"
)

// Command implements otelctx list.
type Command struct {
	Proc hostproc.Flag `help:"${proc}"                               name:"proc" placeholder:"DIR"`
	Wide bool          `help:"Do not fit the table to the terminal." name:"wide"`
	JSON bool          `help:"Print a JSON array."                   name:"json"`
}

// Help returns the text of otelctx list --help.
func (*Command) Help() string {
	return "Shows each process that publishes a process context: its id, service.name, service.instance.id, " +
		"telemetry.sdk.language/name/version, and how long ago it last published. A - stands for a missing attribute.\n\n" +
		"Processes that publish but cannot be read, and those that otelctx is not permitted to read, are reported on standard error, " +
		"as are those that give no answer within " + timelimit.Limit.String() + ". The exit code is still 0.\n\n" +
		"--json prints an array, sorted by pid, of the objects that otelctx inspect --json prints."
}

// Run is called by kong.
func (c *Command) Run(s terminal.Streams) error {
	ctx, release := terminal.UntilInterrupted()
	defer release()
	found := publication.Survey(ctx, c.JSON)
	if found.Failure != nil && len(found.Publications) == 0 {
		return found.Failure
	}
	if len(found.Publications) == 0 && !c.JSON {
		s.Complainf("no process publishes a process context")
	} else if err := c.write(s.Stdout, found.Publications); err != nil {
		return err
	}
	advice.Unread(s, found.Unread)
	advice.Hidden(s)
	return found.Failure
}

func (c *Command) write(w io.Writer, publications []publication.Publication) error {
	if !c.JSON {
		return writeList(w, terminal.Layout(w, c.Wide), publications)
	}
	documents := make([]document.Process, 0, len(publications))
	for _, p := range publications {
		documents = append(documents, document.New(p))
	}
	return display.WriteJSON(w, documents)
}

// writeList writes the contexts as a table.
func writeList(w io.Writer, l display.Layout, publications []publication.Publication) error {
	columns := []display.Column{{Head: "PID"}, {Head: display.ColumnService, Min: 20}, {Head: "INSTANCE", Min: 8}, {Head: "SDK", Min: 12, Spare: 1}, {Head: "PUBLISHED"}}
	var rows [][]string
	for _, p := range publications {
		r := document.New(p).Resource
		age := "?"
		if d, err := p.Context.Age(); err == nil {
			age = display.Age(d) + " ago"
		}
		rows = append(rows, []string{
			strconv.Itoa(p.PID), display.Attribute(r, "service.name"), display.Attribute(r, "service.instance.id"), sdkCell(r), age,
		})
	}
	_, err := w.Write(l.Table(columns, rows))
	return err
}

func sdkCell(resource map[string]any) string {
	cells := []string{
		display.Attribute(resource, "telemetry.sdk.language"),
		display.Attribute(resource, "telemetry.sdk.name"),
		display.Attribute(resource, "telemetry.sdk.version"),
	}
	if !slices.ContainsFunc(cells, func(c string) bool { return c != "-" }) {
		return "-"
	}
	return strings.Join(cells, "/")
}
