// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/privilege"
)

// cli is the command line.
type cli struct {
	List    listCommand      `cmd:""                             help:"List every process on the host that publishes a process context."`
	Inspect inspectCommand   `cmd:""                             help:"Show everything that one process publishes."`
	Watch   watchCommand     `cmd:""                             help:"Show live which spans the threads of one process are in."`
	Spans   spansCommand     `cmd:""                             help:"Show the spans of one process that have started and not ended."`
	Record  recordCommand    `cmd:""                             help:"Record what processes use the CPU for, span by span."`
	Version kong.VersionFlag `help:"Print the version and exit."`
}

const description = `Shows what processes publish about themselves in their process context: the OpenTelemetry resource of a ` +
	`service and the spans that its threads are in, as a profiler sees them; and records profiles of them.

Reading another process takes the same user, as far as the kernel's Yama module allows that, or the capability CAP_SYS_PTRACE. ` +
	`Recording takes the capabilities CAP_BPF and CAP_PERFMON too.

Exit codes:

  0  success; for list also if some processes could not be examined, for watch
     and record also if the process ended meanwhile
  1  any other error, such as an unsupported platform
  2  the command line is wrong
  3  the process publishes no context, or for watch and spans shows none
  4  not permitted to read the process, or for record to sample
  5  there is no such process, or no longer
  6  what the process publishes is not a valid context
  7  the context was being updated each time it was looked at
  8  the process makes those who read it wait, and was given up`

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
	parser := kong.Must(&c,
		kong.Name("otelctx"),
		kong.Description(description),
		kong.Vars{"version": version()},
		kong.Writers(s.stdout, s.stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	command, err := parser.Parse(args)
	if err != nil {
		s.complainf("%v", err)
		s.complainf("run otelctx --help to see what there is")
		return exitUsage
	}
	if err := command.Run(s); err != nil {
		s.complainf("%v", err)
		if a := advice(err, os.DirFS("/proc")); a != "" {
			_, _ = fmt.Fprintln(s.stderr, a)
		}
		return exitCode(err)
	}
	return exitOK
}

// complainf writes a line to stderr. The message may quote what other processes have
// chosen.
func (s streams) complainf(format string, args ...any) {
	// There is nobody left to tell about an error.
	_, _ = fmt.Fprintln(s.stderr, "otelctx:", escape(fmt.Sprintf(format, args...)))
}
