// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/privilege"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
)

// cli is the command line.
type cli struct {
	List       listCommand       `cmd:""                             help:"List every process on the host that publishes a process context."`
	Inspect    inspectCommand    `cmd:""                             help:"Show everything that one process publishes."`
	Watch      watchCommand      `cmd:""                             help:"Show live which spans the threads of one process are in."`
	Spans      spansCommand      `cmd:""                             help:"Show the spans of one process that have started and not ended, and what each waits for."`
	Verify     verifyCommand     `cmd:""                             help:"Check what a process publishes, or a file of profiles, against the formats' rules."`
	Record     recordCommand     `cmd:""                             help:"Record what processes use the CPU for, span by span."`
	Completion completionCommand `cmd:""                             help:"Print what completes command lines in a shell."`
	Man        manCommand        `cmd:""                             help:"Print the manual page."`
	Version    versionFlag       `help:"Print the version and exit."`
}

const description = `Shows what processes publish about themselves in their process context: the OpenTelemetry resource of a ` +
	`service and the spans that its threads are in, as a profiler sees them; and records profiles of them.

Reading another process needs the same user, if the kernel's Yama module allows that, or the capability CAP_SYS_PTRACE. ` +
	"Recording needs the capabilities CAP_BPF and CAP_PERFMON too."

// streams are where commands write to.
type streams struct{ stdout, stderr io.Writer }

func main() {
	s := streams{os.Stdout, os.Stderr}
	// First of all: what the file may, its user may not.
	if err := privilege.Restrict(); err != nil {
		s.complainf("%v", err)
		os.Exit(exitOther)
	}
	os.Exit(run(os.Args[1:], s))
}

// run runs the command line args and returns the exit code. --help and --version end
// the process.
func run(args []string, s streams) int {
	var c cli
	args, c.Record.Command = cutCommand(args)
	parser := kong.Must(&c,
		kong.Name("otelctx"),
		kong.Description(description+"\n\nExit codes:\n\n"+exitCodesText()),
		kong.Vars{"version": version()},
		kong.Writers(s.stdout, s.stderr),
		kong.KindMapper(reflect.String, kong.MapperFunc(decodeString)),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)),
		kong.TypeMapper(reflect.TypeFor[recording.Filter](), kong.MapperFunc(decodeFilter)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	command, err := parser.Parse(args)
	if errors.As(err, new(*fs.PathError)) {
		s.complainf("%v", err) // Help or the version was asked for, and could not be written.
		return exitOther
	}
	if err != nil {
		// An empty value means that there is none, which need not be said.
		s.complainf("%s", strings.Replace(err.Error(), `must be one of "",`, "must be one of ", 1))
		s.complainf("run otelctx --help for the commands and flags")
		return exitUsage
	}
	if err := command.Run(s, parser.Model); err != nil {
		s.complain(err)
		return exitCode(err)
	}
	return exitOK
}

// versionFlag is kong.VersionFlag, but fails if the version cannot be written.
type versionFlag bool

// BeforeReset is called by kong.
func (versionFlag) BeforeReset(app *kong.Kong, vars kong.Vars) error {
	_, err := fmt.Fprintln(app.Stdout, vars["version"])
	if err == nil {
		app.Exit(exitOK)
	}
	return err
}

// complain says what has failed, and what to do about it.
func (s streams) complain(err error) {
	if errors.As(err, new(exitStatusError)) {
		return
	}
	s.complainf("%v", err)
	if a := advice(err, os.DirFS("/proc")); a != "" {
		_, _ = fmt.Fprintln(s.stderr, a)
	}
}

// decodeString keeps bytes that are not UTF-8, as names of files and processes may have them. Kong's
// own decoding turns them into others.
func decodeString(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("string")
	if err == nil {
		target.SetString(fmt.Sprint(token.Value))
	}
	return err
}

// decodeDuration decodes a duration as package time has it, or a number of seconds.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	if seconds, notSeconds := strconv.ParseFloat(text, 64); notSeconds == nil {
		d, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil {
		return fmt.Errorf("expected seconds, or a duration such as 1m30s, but got %q", text)
	}
	target.SetInt(int64(d))
	return nil
}

// decodeFilter decodes KEY=VALUE.
func decodeFilter(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("filter", &text); err != nil {
		return err
	}
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return fmt.Errorf("expected KEY=VALUE, but got %q", text)
	}
	target.Set(reflect.ValueOf(recording.Filter{Key: key, Value: value}))
	return nil
}

// complainf writes a line to stderr. The message may quote what other processes have
// chosen.
func (s streams) complainf(format string, args ...any) {
	// There is nobody left to tell about an error.
	_, _ = fmt.Fprintln(s.stderr, "otelctx:", escape(fmt.Sprintf(format, args...)))
}
