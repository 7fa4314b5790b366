// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/reader"
)

// listCommand implements otelctx list.
type listCommand struct {
	JSON bool `help:"Print a JSON array." name:"json"`
}

// Help returns the text of otelctx list --help.
func (*listCommand) Help() string {
	return "Shows each process that publishes a process context: its id, service.name, service.instance.id, " +
		"telemetry.sdk.language/name/version, and how long ago it last published. A - stands for a missing attribute.\n\n" +
		"Processes that publish but cannot be read, and those that otelctx is not permitted to read, are reported on standard error, " +
		"as are those that give no answer within " + patient.Limit.String() + ". The exit code is still 0.\n\n" +
		"--json prints an array, sorted by pid, of the objects that otelctx inspect --json prints."
}

// publication is what a process publishes.
type publication struct {
	pid     int
	context *reader.ProcessContext
	// contextErr is the reason why context is nil, if the process publishes spans without a readable context.
	contextErr error
	// activity is empty unless it was requested.
	activity activity
}

// Run is called by kong.
func (c *listCommand) Run(s streams) error {
	ctx, release := untilInterrupted()
	defer release()
	found := survey(ctx, c.JSON)
	if found.failure != nil && len(found.publications) == 0 {
		return found.failure
	}
	if err := c.write(s.stdout, found.publications); err != nil {
		return err
	}
	reportUnread(s, found.unread)
	return found.failure
}

func (c *listCommand) write(w io.Writer, publications []publication) error {
	if !c.JSON {
		return writeList(w, publications)
	}
	documents := make([]document, 0, len(publications))
	for _, p := range publications {
		documents = append(documents, newDocument(p.pid, p.context, p.activity))
	}
	return writeJSON(w, documents)
}

// findings is the result of [survey].
type findings struct {
	// publications is sorted by pid.
	publications []publication
	// unread has an error for each process that publishes, or may publish, but could not be read.
	unread []error
	// failure is any other reason why the list is incomplete.
	failure error
}

// survey reads the contexts of all processes, and if active is true, the spans that their threads are in.
func survey(ctx context.Context, active bool) findings {
	var f findings
	// Fail immediately on platforms where no process can be read.
	self, err := reader.Open(os.Getpid())
	if err != nil {
		return findings{failure: err}
	}
	_ = self.Close()
	var (
		reads   sync.WaitGroup
		mu      sync.Mutex // guards f
		tooMany error
	)
	slots := make(chan struct{}, maxReads)
	for pid, err := range procfs.NewFS("/proc").PIDs() {
		if err != nil {
			f.failure = errors.Join(f.failure, fmt.Errorf("list processes: %w", err))
			break
		}
		if ctx.Err() != nil {
			break
		}
		// Processes are read concurrently, so that a process that blocks its reader does not delay the others.
		slots <- struct{}{}
		reads.Go(func() {
			defer func() { <-slots }()
			found, err := read(ctx, pid, active)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				f.publications = append(f.publications, found)
			case errors.Is(err, patient.ErrTooMany):
				tooMany = err
			default:
				f.add(pid, err)
			}
		})
	}
	reads.Wait()
	if tooMany != nil {
		f.unread = append(f.unread, tooMany)
	}
	if ctx.Err() != nil {
		f.failure = errors.Join(f.failure, fmt.Errorf("the list is not complete: %w", ctx.Err()))
	}
	slices.SortFunc(f.unread, func(a, b error) int { return cmp.Compare(errorPID(a), errorPID(b)) })
	slices.SortFunc(f.publications, func(a, b publication) int { return cmp.Compare(a.pid, b.pid) })
	return f
}

// maxReads is the maximum number of processes that are read at the same time. One user cannot block that many
// reads.
const maxReads = 128

// read reads the context of a process, and if active is true, the spans that its threads are in.
func read(ctx context.Context, pid int, active bool) (publication, error) {
	return patient.Call(ctx, pid, patient.Limit, func() (publication, error) {
		p, err := reader.Open(pid)
		if err != nil {
			return publication{}, err
		}
		defer func() { _ = p.Close() }()
		found := publication{pid: pid}
		if found.context, err = p.ProcessContext(ctx); err == nil && active {
			found.activity, err = observe(ctx, p)
		}
		return found, err
	})
}

// add records why a process could not be read.
func (f *findings) add(pid int, err error) {
	switch exitCode(err) {
	case exitNoContext, exitProcessGone:
		// Most processes publish nothing, and any process may exit during the scan. Neither is reported.
	case exitNotPermitted, exitInvalid, exitBusy, exitNoAnswer:
		f.unread = append(f.unread, recording.NewProcessError(pid, err))
	default:
		f.failure = errors.Join(f.failure, err)
	}
}

// writeList writes the contexts as a table.
func writeList(w io.Writer, publications []publication) error {
	rows := [][]string{{"PID", columnService, "INSTANCE", "SDK", "AGE"}}
	for _, p := range publications {
		r := newDocument(p.pid, p.context, activity{}).Resource
		age := "?"
		if d, err := p.context.Age(); err == nil {
			age = ageText(d)
		}
		rows = append(rows, []string{
			strconv.Itoa(p.pid), cell(r, "service.name"), cell(r, "service.instance.id"), sdkCell(r), age,
		})
	}
	_, err := w.Write(table(rows))
	return err
}

// cell returns the value of an attribute for a table.
func cell(resource map[string]any, key string) string {
	v, ok := resource[key]
	if !ok {
		return "-"
	}
	return valueText(v)
}

func sdkCell(resource map[string]any) string {
	cells := []string{
		cell(resource, "telemetry.sdk.language"),
		cell(resource, "telemetry.sdk.name"),
		cell(resource, "telemetry.sdk.version"),
	}
	if !slices.ContainsFunc(cells, func(c string) bool { return c != "-" }) {
		return "-"
	}
	return strings.Join(cells, "/")
}
