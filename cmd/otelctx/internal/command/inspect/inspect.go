// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package inspect implements otelctx inspect.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/hostproc"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/threadtable"
	"github.com/otelctx/otelctx/reader"
)

// Command implements otelctx inspect.
type Command struct {
	Process publication.Selector `arg:""                                                                     help:"The process to read: its id, or its service name." name:"process"`
	Proc    hostproc.Flag        `help:"${proc}"                                                             name:"proc"                                              placeholder:"DIR"`
	Verbose bool                 `help:"Show the threadlocal.* attributes too, by which readers find spans." name:"verbose"                                           short:"v"`
	Wide    bool                 `help:"Show whole ids and all columns, whatever the terminal's width."      name:"wide"`
	JSON    bool                 `help:"Print JSON, nothing truncated."                                      name:"json"`
}

// Help returns the text of otelctx inspect --help.
func (*Command) Help() string {
	return "Shows the header of the process context, the resource, the extra attributes, the carriers (the tables and records in " +
		"which readers find spans), and the threads that are in a span.\n\n" + document.Help
}

// Validate is called by kong.
func (c *Command) Validate() error { return c.Process.Validate() }

// Run is called by kong.
func (c *Command) Run(s terminal.Streams) error {
	ctx := context.Background()
	pid, err := c.Process.Find(ctx)
	if err != nil {
		return err
	}
	found, err := publication.Read(ctx, pid, true)
	if errors.Is(err, reader.ErrNoContext) || errors.Is(err, reader.ErrInvalid) {
		found, err = publication.ReadWithoutContext(ctx, pid, err)
	}
	if err != nil {
		return processerror.About(pid, err)
	}
	if c.JSON {
		return display.WriteJSON(s.Stdout, document.New(found))
	}
	return writeInspection(s.Stdout, terminal.Layout(s.Stdout, c.Wide), found, c.Verbose)
}

// writeInspection writes a process's publication as text.
func writeInspection(w io.Writer, l display.Layout, found publication.Publication, verbose bool) error {
	pc, threads := found.Context, found.Activity.Threads
	d := document.New(found)
	out := []byte(l.Heading(publication.Title(found.PID, found.Service()), ": process context"))
	if pc == nil {
		out = fmt.Appendf(out, "  %s\n", display.Escape(found.ContextErr.Error()))
	} else {
		out = append(out, l.Table(attributeColumns, [][]string{
			{"  Version", strconv.FormatUint(uint64(d.Version), 10)},
			{"  Published", publishedText(pc)},
			{"  Payload", fmt.Sprintf("%d bytes", d.PayloadSize)},
			{"  Mapping", fmt.Sprintf("%s at %#x", display.Escape(d.Mapping), pc.MappingAddress)},
			{"  Schema URL", schemaURLText(d.SchemaURL)},
		})...)
		out = appendAttributes(out, l, "Resource", d.Resource, true)
		out = appendAttributes(out, l, "Extra attributes", d.Attributes, verbose)
	}
	if ad := d.Advertisement; ad != nil {
		out = appendAttributes(out, l, "Attributes of "+display.Escape(ad.Mapping), ad.Attributes, verbose)
	}
	out = appendCarriers(out, l, d.Carriers)
	if len(threads) > 0 {
		out = appendTitle(out, l, "Threads in a span", threadtable.Count(threads))
		out = threadtable.Append(out, l, threads)
	}
	_, err := w.Write(out)
	return err
}

// attributeColumns are the columns of a list of keys and values.
var attributeColumns = []display.Column{{}, {Min: 40}}

// appendTitle appends the title of a table, and how many rows it has.
func appendTitle(out []byte, l display.Layout, title, count string) []byte {
	return fmt.Appendf(out, "\n%s: %s\n", l.Styled(display.Bold, title), count)
}

func publishedText(pc *reader.ProcessContext) string {
	age, err := pc.Age()
	if err != nil {
		return display.Escape(err.Error())
	}
	return fmt.Sprintf("%s (%s ago)", time.Now().Add(-age).UTC().Format(time.DateTime+" MST"), display.Age(age))
}

func schemaURLText(url string) string {
	if url == "" {
		return "none"
	}
	return display.Value(url)
}

// threadLocalPrefix is the prefix of the attributes that say where readers find spans.
const threadLocalPrefix = "threadlocal."

// appendAttributes appends attributes as text. It omits threadlocal.* unless all is true.
func appendAttributes(out []byte, l display.Layout, title string, attributes map[string]any, all bool) []byte {
	if len(attributes) == 0 {
		return appendTitle(out, l, title, "none")
	}
	var rows [][]string
	hidden := 0
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		if !all && strings.HasPrefix(key, threadLocalPrefix) {
			hidden++
			continue
		}
		rows = append(rows, []string{"  " + display.Key(key), display.Value(attributes[key])})
	}
	out = appendTitle(out, l, title, strconv.Itoa(len(attributes)))
	out = append(out, l.Table(attributeColumns, rows)...)
	if hidden > 0 {
		out = fmt.Appendf(out, "  %d threadlocal.* attributes, which say where readers find spans: -v shows them\n", hidden)
	}
	return out
}

func appendCarriers(out []byte, l display.Layout, carriers []document.Carrier) []byte {
	if len(carriers) == 0 {
		return appendTitle(out, l, "Carriers of spans", "none")
	}
	var rows [][]string
	for _, d := range carriers {
		rows = append(rows, []string{"  " + d.Kind, carrierText(&d), carrierState(&d)})
	}
	out = appendTitle(out, l, "Carriers of spans", strconv.Itoa(len(carriers)))
	return append(out, l.Table([]display.Column{{}, {Min: 20}, {Min: 20}}, rows)...)
}

// carrierText describes where a carrier is.
func carrierText(d *document.Carrier) string {
	switch {
	case d.Address != 0:
		name := d.Mapping
		if name == "" {
			name = "no name"
		}
		what := "slots"
		if d.Kind == reader.GoroutineTable.String() {
			what = "entries"
		}
		return fmt.Sprintf("layout %d, %d %s of %d bytes at %#x, %s", d.Layout, d.Capacity, what, d.SlotSize, d.Address, display.Key(name))
	case d.Schema != "" && d.Mapping != "":
		return fmt.Sprintf("%s, otel_thread_ctx_v1 in %s", display.Key(d.Schema), display.Key(d.Mapping))
	case d.Schema != "":
		return display.Key(d.Schema)
	case d.RecordOffset != 0:
		return fmt.Sprintf("%d bytes behind the label pointer", d.RecordOffset)
	default:
		return "-"
	}
}

func carrierState(d *document.Carrier) string {
	state := strings.ReplaceAll(d.Source, "_", " ")
	switch {
	case d.Error != "":
		return state + ", cannot be read: " + display.Cut(display.Escape(d.Error), display.MaxValue)
	case !d.Provable:
		return state + ", cannot be proven"
	default:
		return state
	}
}
