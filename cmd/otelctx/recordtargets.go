// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/advice"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/launch"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
)

// recordTargets holds the flags and arguments that select processes.
type recordTargets struct {
	PIDArgs  []processID `arg:""             help:"Processes to record."                                                                                 name:"pid"     optional:""`
	PIDList  []processID `group:"Processes:" help:"The same as the PID arguments."                                                                       name:"pid"     placeholder:"PID"       short:"p"`
	All      bool        `group:"Processes:" help:"All processes that publish a context or spans, even if they start later."                             name:"all"     short:"a"`
	Services []string    `group:"Processes:" help:"Processes that publish one of these names as service.name."                                           name:"service" placeholder:"NAME,…"    sep:"none"`
	Names    []string    `group:"Processes:" help:"Processes whose executable, or name in ps, is one of these."                                          name:"name"    placeholder:"NAME,…"    sep:"none"`
	Cgroups  []string    `group:"Processes:" help:"Processes in one of these control groups: a path, a name, or at least 12 digits of a container's id." name:"cgroup"  placeholder:"GROUP,…"   sep:"none"`
	// PIDs joins PIDArgs and PIDList.
	PIDs []int `kong:"-"`
	// Command is the command after --. started is its process id once it has been started.
	Command []string `kong:"-"`
	started int
}

// processID is an argument that must be a process id.
type processID int

// UnmarshalText is called by kong.
func (p *processID) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a process id; for the processes with a name say --name %[1]s, and to start a command -- %[1]s", text)
	}
	*p = processID(n)
	return nil
}

// cutCommand splits the arguments of record at --. command is nil without --, and empty if nothing follows.
func cutCommand(args []string) (rest, command []string) {
	if len(args) == 0 || args[0] != recordName {
		return args, nil
	}
	for i, arg := range args {
		if arg == "--" {
			return args[:i], append([]string{}, args[i+1:]...)
		}
	}
	return args, nil
}

// splitList splits each element at commas without a preceding backslash. Unlike kong it keeps invalid UTF-8,
// which the names of processes and control groups may contain. It drops empty values, which would select
// every process.
func splitList(list []string) (values []string) {
	const comma = "\x00" // no argument contains it
	for _, several := range list {
		for value := range strings.SplitSeq(strings.ReplaceAll(several, `\,`, comma), ",") {
			if value != "" {
				values = append(values, strings.ReplaceAll(value, comma, ","))
			}
		}
	}
	return values
}

// validate checks that processes are selected in exactly one way.
func (t *recordTargets) validate() error {
	t.Names, t.Services, t.Cgroups = splitList(t.Names), splitList(t.Services), splitList(t.Cgroups)
	for _, pid := range slices.Concat(t.PIDArgs, t.PIDList) {
		if pid <= 0 {
			return fmt.Errorf("%d is not a process id", pid)
		}
		if !slices.Contains(t.PIDs, int(pid)) {
			t.PIDs = append(t.PIDs, int(pid))
		}
	}
	if t.Command != nil && len(t.Command) == 0 {
		return errors.New("expected a command after --")
	}
	selections := 0
	for _, chosen := range []bool{len(t.PIDs) > 0, t.All, t.selecting(), t.Command != nil} {
		if chosen {
			selections++
		}
	}
	if selections != 1 {
		return errors.New("select processes in exactly one of these ways: process ids; --all; --service, --name and --cgroup; a command after --")
	}
	return nil
}

// selecting reports whether processes are selected by service, name or control group.
func (t *recordTargets) selecting() bool { return len(t.Names)+len(t.Services)+len(t.Cgroups) > 0 }

// selection returns the processes to record. It is not used for a command.
func (t *recordTargets) selection() recording.Selection {
	return recording.Selection{PIDs: t.PIDs, Names: t.Names, Services: t.Services, Cgroups: t.Cgroups}
}

// pid returns the id of the command, or of the process if exactly one id was given. Otherwise it returns 0.
func (t *recordTargets) pid() int {
	if len(t.PIDs) != 1 {
		return t.started
	}
	return t.PIDs[0]
}

// maxCommandText is the maximum number of characters of a command that are printed.
const maxCommandText = 60

// String describes the processes to record.
func (t *recordTargets) String() string {
	switch {
	case t.Command != nil:
		words := make([]string, len(t.Command))
		for i, word := range t.Command {
			words[i] = display.Shell(word)
		}
		text := []rune(strings.Join(words, " "))
		if len(text) > maxCommandText {
			text = append(text[:maxCommandText], '…')
		}
		return string(text)
	case len(t.PIDs) == 1:
		return "process " + strconv.Itoa(t.PIDs[0])
	case len(t.PIDs) > 1:
		var ids []string
		for _, pid := range t.PIDs {
			ids = append(ids, strconv.Itoa(pid))
		}
		return "processes " + strings.Join(ids, ", ")
	case !t.selecting():
		return "every process that publishes"
	}
	var by []string
	for _, s := range []struct {
		what   string
		values []string
	}{{"name", t.Names}, {"service", t.Services}, {"control group", t.Cgroups}} {
		if len(s.values) > 0 {
			by = append(by, s.what+" "+display.Key(strings.Join(s.values, " or ")))
		}
	}
	return "processes of " + strings.Join(by, " and ")
}

// recordStarted starts the command, records it from its first instruction, and waits until it exits.
func (c *recordCommand) recordStarted(s terminal.Streams) error {
	command, err := launch.Start(c.Command)
	if err != nil {
		return err
	}
	c.started = command.PID()
	defer command.PassSignals()()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-command.Ended()
		cancel()
	}()
	// Signals are meant for the command. In this process they only end the wait for files and collectors.
	interrupted, stop := signal.NotifyContext(context.Background(), terminal.Interrupts()...)
	defer stop()
	resumed := false
	err = c.record(ctx, interrupted, s, recording.Selection{PIDs: []int{command.PID()}, Children: true}, func() error {
		resumed = true
		return command.Resume()
	})
	if !resumed {
		command.Kill()
		return err
	}
	<-command.Ended()
	// Exit with the code of the command, even if it ended before its first sample.
	if code := command.ExitCode(); code != exitcode.OK || errors.Is(err, exitcode.ErrNoSamples) {
		if err != nil {
			advice.Complain(s, err)
		}
		return exitcode.Status(code)
	}
	return err
}
