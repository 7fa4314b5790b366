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
	List       listCommand       `cmd:""                             help:"List the processes that publish a process context."`
	Inspect    inspectCommand    `cmd:""                             help:"Show everything that a process publishes."`
	Watch      watchCommand      `cmd:""                             help:"Show, live, which spans the threads of a process are in."`
	Spans      spansCommand      `cmd:""                             help:"Show the live spans of a process, the oldest first, and what each waits for."`
	Verify     verifyCommand     `cmd:""                             help:"Check what a process publishes, or a file of profiles, against the formats' rules."`
	Record     recordCommand     `cmd:""                             help:"Record what processes use the CPU for, span by span."`
	Completion completionCommand `cmd:""                             help:"Print the completion script of a shell."`
	Man        manCommand        `cmd:""                             help:"Print the manual page."`
	Version    versionFlag       `help:"Print the version and exit."`
}

const description = `Shows what running services publish for profilers: their OpenTelemetry resource, and the span that each thread ` +
	`is in. Records CPU profiles in which each sample has its span.

Reading another process needs the capability CAP_SYS_PTRACE, or the same user if the kernel's Yama module permits that. ` +
	"Recording also needs CAP_BPF and CAP_PERFMON. Root has all three."

// streams are the destinations of a command's output.
type streams struct{ stdout, stderr io.Writer }

func main() {
	s := streams{os.Stdout, os.Stderr}
	// Restrict comes first: it disables the capabilities that the executable file grants, so that users cannot
	// misuse them.
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
	if len(args) > 0 && args[0] == completeCommand {
		if err := complete(s, parser.Model, args[1:]); err != nil {
			s.complain(err)
			return exitOther
		}
		return exitOK
	}
	command, err := parser.Parse(args)
	if errors.As(err, new(*fs.PathError)) {
		s.complainf("%v", err) // Writing the help or the version failed.
		return exitOther
	}
	if err != nil {
		// Among the possible values, kong lists the empty value of a flag that was not given.
		s.complainf("%s", strings.Replace(err.Error(), `must be one of "",`, "must be one of ", 1))
		s.complainf("run %s for the commands and flags", helpCommand(err))
		return exitUsage
	}
	if err := command.Run(s, parser.Model); err != nil {
		s.complain(err)
		return exitCode(err)
	}
	return exitOK
}

// helpCommand returns the command whose help covers an error in the command line.
func helpCommand(err error) string {
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context.Selected() != nil {
		return "otelctx " + parse.Context.Selected().Name + " --help"
	}
	return "otelctx --help"
}

// versionFlag is like kong.VersionFlag, but returns an error if the version cannot be written.
type versionFlag bool

// BeforeReset is called by kong.
func (versionFlag) BeforeReset(app *kong.Kong, vars kong.Vars) error {
	_, err := fmt.Fprintln(app.Stdout, vars["version"])
	if err == nil {
		app.Exit(exitOK)
	}
	return err
}

// complain prints an error and advice, if there is any. It prints nothing for an exitStatusError.
func (s streams) complain(err error) {
	if errors.As(err, new(exitStatusError)) {
		return
	}
	s.complainf("%v", err)
	if a := advice(err, os.DirFS("/proc")); a != "" {
		_, _ = fmt.Fprintln(s.stderr, a)
	}
}

// decodeString decodes a string like kong, but keeps invalid UTF-8, which the names of files and processes
// may have.
func decodeString(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("string")
	if err == nil {
		target.SetString(fmt.Sprint(token.Value))
	}
	return err
}

// decodeDuration decodes a duration such as 1m30s, or a number of seconds.
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

// complainf writes a line to stderr. It escapes the message, which may quote other processes.
func (s streams) complainf(format string, args ...any) {
	// If stderr fails, there is no place to report the error.
	_, _ = fmt.Fprintln(s.stderr, "otelctx:", escape(fmt.Sprintf(format, args...)))
}
