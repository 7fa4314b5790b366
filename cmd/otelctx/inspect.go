// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/reader"
)

// inspectCommand implements otelctx inspect.
type inspectCommand struct {
	PID     int  `arg:""                                                                     help:"The process to read." name:"pid"`
	Verbose bool `help:"Show the threadlocal.* attributes too, by which readers find spans." name:"verbose"              short:"v"`
	JSON    bool `help:"Print JSON, nothing truncated."                                      name:"json"`
}

// Help returns the text of otelctx inspect --help.
func (*inspectCommand) Help() string {
	return "Shows the header of the process context, the resource, the extra attributes, the carriers (the tables and records in " +
		"which readers find spans), and the threads that are in a span.\n\n" + jsonHelp
}

// Validate is called by kong.
func (c *inspectCommand) Validate() error { return validatePID(c.PID) }

// validatePID returns an error unless pid may be the id of a process. 0 means that the command line has no id.
func validatePID(pid int) error {
	switch {
	case pid == 0:
		return errors.New("expected the id of a process")
	case pid < 0:
		return fmt.Errorf("%d is not a process id", pid)
	default:
		return nil
	}
}

// Run is called by kong.
func (c *inspectCommand) Run(s streams) error {
	found, err := read(context.Background(), c.PID, true)
	if errors.Is(err, reader.ErrNoContext) || errors.Is(err, reader.ErrInvalid) {
		found, err = readWithoutContext(context.Background(), c.PID, err)
	}
	if err != nil {
		return aboutProcess(c.PID, err)
	}
	if c.JSON {
		return writeJSON(s.stdout, newDocument(found.pid, found.context, found.activity))
	}
	return writeInspection(s.stdout, found, c.Verbose)
}

// readWithoutContext reads the spans of a process whose context could not be read. contextErr is the reason;
// readWithoutContext returns it if the process advertises no spans either.
func readWithoutContext(ctx context.Context, pid int, contextErr error) (publication, error) {
	return patient.Call(ctx, pid, patient.Limit, func() (publication, error) {
		p, err := reader.Open(pid)
		if err != nil {
			return publication{}, err
		}
		defer func() { _ = p.Close() }()
		a, err := observe(ctx, p)
		if err != nil || a.advertisement == nil {
			return publication{}, contextErr
		}
		return publication{pid: pid, contextErr: contextErr, activity: a}, nil
	})
}

// writeInspection writes a process's publication as text.
func writeInspection(w io.Writer, found publication, verbose bool) error {
	pid, pc, a := found.pid, found.context, found.activity
	d := newDocument(pid, pc, a)
	out := fmt.Appendf(nil, "Process context of process %d\n", pid)
	if pc == nil {
		out = fmt.Appendf(out, "  %s\n", escape(found.contextErr.Error()))
	} else {
		out = append(out, table([][]string{
			{"  Version", strconv.FormatUint(uint64(d.Version), 10)},
			{"  Published", publishedText(pc)},
			{"  Payload", fmt.Sprintf("%d bytes", d.PayloadSize)},
			{"  Mapping", fmt.Sprintf("%s at %#x", escape(d.Mapping), pc.MappingAddress)},
			{"  Schema URL", schemaURLText(d.SchemaURL)},
		})...)
		out = appendAttributes(out, "Resource", d.Resource, true)
		out = appendAttributes(out, "Extra attributes", d.Attributes, verbose)
	}
	if ad := d.Advertisement; ad != nil {
		out = appendAttributes(out, "Attributes of "+escape(ad.Mapping), ad.Attributes, verbose)
	}
	out = appendCarriers(out, a.carriers)
	if len(a.threads) > 0 {
		out = fmt.Appendf(out, "\nThreads in a span: %s\n", threadsText(a.threads))
		out = appendThreads(out, a.threads, math.MaxInt)
	}
	_, err := w.Write(out)
	return err
}

func publishedText(pc *reader.ProcessContext) string {
	age, err := pc.Age()
	if err != nil {
		return escape(err.Error())
	}
	return fmt.Sprintf("%s (%s ago)", time.Now().Add(-age).UTC().Format(time.DateTime+" MST"), ageText(age))
}

func schemaURLText(url string) string {
	if url == "" {
		return "none"
	}
	return valueText(url)
}

// threadLocalPrefix is the prefix of the attributes that say where readers find spans.
const threadLocalPrefix = "threadlocal."

// appendAttributes appends attributes as text. It omits threadlocal.* unless all is true.
func appendAttributes(out []byte, title string, attributes map[string]any, all bool) []byte {
	if len(attributes) == 0 {
		return fmt.Appendf(out, "\n%s: none\n", title)
	}
	var rows [][]string
	hidden := 0
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		if !all && strings.HasPrefix(key, threadLocalPrefix) {
			hidden++
			continue
		}
		rows = append(rows, []string{"  " + keyText(key), valueText(attributes[key])})
	}
	out = fmt.Appendf(out, "\n%s: %d\n", title, len(attributes))
	out = append(out, table(rows)...)
	if hidden > 0 {
		out = fmt.Appendf(out, "  %d threadlocal.* attributes, which say where readers find spans: -v shows them\n", hidden)
	}
	return out
}
