// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package verify implements otelctx verify.
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/conformance"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

// Command implements otelctx verify.
type Command struct {
	Process  publication.Selector `arg:""                                                               help:"The process to check: its id, or its service name." name:"process"     optional:""`
	Duration time.Duration        `default:"5s"                                                         help:"How long to watch the process."                     name:"duration"    short:"d"`
	Profile  string               `help:"Check a file of OTLP profiles instead (.otlp, .json, .jsonl)." name:"profile"                                            placeholder:"FILE"`
	JSON     bool                 `help:"Print JSON."                                                   name:"json"`
	Verbose  bool                 `help:"Also list the rules that passed."                              name:"verbose"                                            short:"v"`
}

// Help returns the text of otelctx verify --help.
func (*Command) Help() string {
	return `Checks the publications of a process in any language against every rule of OTEP 4719 (process context) and OTEP 4947 (thread ` +
		`context), and a file of profiles against the rules of OTLP. Exits with 10 if a rule is broken.

  otelctx verify 4711 -d 30s        watch a process for half a minute
  otelctx verify 4711 --json        print JSON
  otelctx verify --profile p.otlp   check a file

A rule passes if it was exercised and no violation was seen. Updates, forks and threads are seen only if they happen while the ` +
		`process is watched. Unless the C library is glibc on amd64, each thread of a process with thread contexts is stopped once, for ` +
		`microseconds, to learn its thread pointer.`
}

// Validate is called by kong.
func (c *Command) Validate() error {
	switch {
	case c.Profile != "" && c.Process != publication.Selector{}:
		return errors.New("expected a process or --profile, not both")
	case c.Profile != "":
		return nil
	case c.Duration <= 0:
		return fmt.Errorf("--duration %v is not positive", c.Duration)
	}
	return c.Process.Validate()
}

// Run is called by kong.
func (c *Command) Run(s terminal.Streams) error {
	if c.Profile != "" {
		return c.verifyProfile(s)
	}
	ctx, stop := terminal.UntilInterrupted()
	defer stop()
	pid, err := c.Process.Find(ctx)
	if err != nil {
		return err
	}
	// An interrupt ends the check early with a report. If the process blocks its readers, the check cannot notice
	// the interrupt, and the limit ends it.
	limit := min(c.Duration, math.MaxInt64-timelimit.Limit) + timelimit.Limit
	results, err := timelimit.Call(context.WithoutCancel(ctx), pid, limit, func() ([]conformance.Result, error) {
		return conformance.Process(ctx, pid, c.Duration)
	})
	if errors.Is(err, fs.ErrPermission) && !errors.Is(err, reader.ErrNotPermitted) {
		err = fmt.Errorf("%w: %w", reader.ErrNotPermitted, err)
	}
	if err != nil {
		return processerror.About(pid, err)
	}
	failed := 0
	for _, r := range results {
		if r.Status == conformance.Failed {
			failed++
		}
	}
	if c.JSON {
		err = display.WriteJSON(s.Stdout, Document{PID: pid, Failed: failed, Rules: results})
	} else {
		err = c.write(s.Stdout, terminal.Layout(s.Stdout, false), results)
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%w: %d of %d rules are broken", exitcode.ErrNotConforming, failed, len(results))
	}
	return err
}

// Document is the output of verify --json.
type Document struct {
	PID int `json:"pid"`
	// Failed counts the rules that are broken.
	Failed int                  `json:"failed"`
	Rules  []conformance.Result `json:"rules"`
}

// write prints the broken rules first, then the rules that were not exercised, and then the passed ones: with -v
// all of them, otherwise those that could not be checked everywhere.
func (c *Command) write(w io.Writer, l display.Layout, results []conformance.Result) error {
	counts := map[conformance.Status]int{}
	var out []byte
	for _, status := range []conformance.Status{conformance.Failed, conformance.NotExercised, conformance.Passed} {
		for _, r := range results {
			if r.Status != status {
				continue
			}
			counts[status]++
			if status == conformance.Passed && !c.Verbose && len(r.Evidence) == 0 {
				continue
			}
			lines := l.Hang(fmt.Sprintf("%-13s %-9s %-6s ", status, r.ID, r.Level), fmt.Sprintf("%s (%s)", r.Text, r.Section))
			if status == conformance.Failed {
				lines[0] = l.Styled(display.Red, string(status)) + strings.TrimPrefix(lines[0], string(status))
			}
			for _, e := range r.Evidence {
				lines = append(lines, l.Hang("              ", display.Escape(e))...)
			}
			out = append(out, strings.Join(lines, "\n")+"\n"...)
		}
	}
	out = fmt.Appendf(out, "%d passed, %d failed, %d not exercised\n", counts[conformance.Passed], counts[conformance.Failed], counts[conformance.NotExercised])
	_, err := w.Write(out)
	return err
}

// verifyProfile checks a profile file.
func (c *Command) verifyProfile(s terminal.Streams) error {
	content, err := readProfile(c.Profile)
	if err != nil {
		return err
	}
	problems, err := profile.CheckFile(filepath.Ext(c.Profile), content)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Profile, err)
	}
	for _, p := range problems {
		if _, err := fmt.Fprintln(s.Stdout, display.Escape(p.Error())); err != nil {
			return err
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("%w: %s breaks %d rules", exitcode.ErrNotConforming, c.Profile, len(problems))
	}
	_, err = fmt.Fprintf(s.Stdout, "%s: no rule is broken\n", c.Profile)
	return err
}

// maxProfileSize is the maximum size of the file that verify --profile reads. Decoded messages can be many times
// as large, because an empty message takes two bytes in a file.
const maxProfileSize = 64 << 20

// readProfile reads a regular file of at most maxProfileSize bytes. It rejects other files: /dev/zero, for
// example, has no end.
func readProfile(path string) ([]byte, error) {
	// Opening a FIFO would otherwise wait until another process writes to it.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // G304: the user names the file
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > maxProfileSize:
		return nil, fmt.Errorf("%s: %d bytes are more than the %d that can be checked", path, info.Size(), maxProfileSize)
	}
	return io.ReadAll(io.LimitReader(f, maxProfileSize)) // The file may be growing.
}
