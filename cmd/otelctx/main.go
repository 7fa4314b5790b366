// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/advice"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/completion"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/goroutines"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/inspect"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/list"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/man"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/record"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/spans"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/top"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/verify"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/watch"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/hostproc"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/privilege"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/version"
)

type cli struct {
	List       list.Command       `cmd:""                             help:"List the processes that publish a process context."`
	Spans      spans.Command      `cmd:""                             help:"Show the live spans of a process, the oldest first, and what each waits for."`
	Top        top.Command        `cmd:""                             help:"Show, live, which endpoints and spans of a process use the most time."`
	Goroutines goroutines.Command `cmd:""                             help:"Show every goroutine of a process, grouped by equal stacks."`
	Record     record.Command     `cmd:""                             help:"Record what processes use the CPU for, span by span."`
	Watch      watch.Command      `cmd:""                             help:"Show, live, which spans the threads of a process are in."`
	Inspect    inspect.Command    `cmd:""                             help:"Show everything that a process publishes."`
	Verify     verify.Command     `cmd:""                             help:"Check what a process publishes, or a file of profiles, against the formats' rules."`
	Completion completion.Command `cmd:""                             help:"Print the completion script of a shell."`
	Man        man.Command        `cmd:""                             help:"Print the manual page."`
	Version    versionFlag        `help:"Print the version and exit."`
}

func main() {
	s := terminal.Streams{Stdout: os.Stdout, Stderr: os.Stderr}
	// Restrict comes first: it disables the capabilities that the executable file grants, so that users cannot
	// misuse them.
	if err := privilege.Restrict(); err != nil {
		s.Complainf("%v", err)
		os.Exit(exitcode.Other)
	}
	os.Exit(run(os.Args[1:], s))
}

// run runs the command line args and returns the exit code. --help and --version end
// the process.
func run(args []string, s terminal.Streams) int {
	var c cli
	args, c.Record.Program = record.CutCommand(args)
	parser := kong.Must(&c,
		kong.Name("otelctx"),
		kong.Description(man.Description), kong.Help(printHelp),
		kong.Vars{"version": version.Text(), "proc": hostproc.Help}, record.FlagHelp,
		kong.Writers(s.Stdout, s.Stderr),
		kong.KindMapper(reflect.String, kong.MapperFunc(decodeString)),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
	)
	if len(args) > 0 && args[0] == completion.Complete {
		if err := completion.Candidates(s, parser.Model, args[1:]); err != nil {
			advice.Complain(s, err)
			return exitcode.Other
		}
		return exitcode.OK
	}
	command, err := parser.Parse(args)
	if errors.As(err, new(*fs.PathError)) {
		s.Complainf("%v", err) // Writing the help or the version failed.
		return exitcode.Other
	}
	if err != nil {
		// Among the possible values, kong lists the empty value of a flag that was not given.
		s.Complainf("%s", strings.Replace(err.Error(), `must be one of "",`, "must be one of ", 1))
		s.Complainf("run %s for the commands and flags", helpCommand(err))
		return exitcode.Usage
	}
	if err := command.Run(s, parser.Model); err != nil {
		advice.Complain(s, err)
		return exitcode.Of(err)
	}
	return exitcode.OK
}

// printHelp prints the help. The help of the whole program ends with the exit codes.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	err := kong.DefaultHelpPrinter(options, ctx)
	if err != nil || ctx.Selected() != nil {
		return err
	}
	_, err = fmt.Fprintf(ctx.Stdout, "\nExit codes:\n%s\n", exitcode.Text())
	return err
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
		app.Exit(exitcode.OK)
	}
	return err
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
