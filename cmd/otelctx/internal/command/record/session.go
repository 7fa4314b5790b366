// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/advice"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/hostproc"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/launch"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
)

// memoryLimit is the memory use in bytes near which garbage is collected more often. Most recordings stay far
// below it, but the symbols and stacks of hostile processes, although bounded, may exceed it.
const memoryLimit = 100 << 20

// session carries out a plan.
type session struct {
	*plan

	streams  terminal.Streams
	progress *progressBar // nil if there is none
	// started is the process id of the command once it has been started.
	started int
	// samples is the number of samples of CPU time or allocations in all periods. seen is the number of span names with wall-clock time
	// in all periods, and processes the largest number of processes in a period.
	samples         uint64
	seen, processes int
	// collections is the number of completed collections. Before the first, nothing is known to be in use.
	collections uint64
}

func (s *session) run() error {
	if err := hostproc.CheckNamespace(s.cpu != nil || s.alloc != nil); err != nil {
		return err
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if s.targets.command != nil {
		return s.recordStarted()
	}
	ctx, release := terminal.UntilInterrupted()
	defer release()
	return s.record(ctx, ctx, s.targets.selection(), nil)
}

// recordStarted starts the command, records it from its first instruction, and waits until it exits.
func (s *session) recordStarted() error {
	command, err := launch.Start(s.targets.command)
	if err != nil {
		return err
	}
	s.started = command.PID()
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
	err = s.record(ctx, interrupted, recording.Selection{PIDs: []int{command.PID()}, Children: true}, func() error {
		resumed = true
		return command.Resume()
	})
	if !resumed {
		command.Kill()
		return err
	}
	select {
	case <-command.Ended():
	default:
		s.streams.Complainf("the recording has ended, but process %d runs on: waiting for it", s.started)
		<-command.Ended()
	}
	// Exit with the code of the command, even if it ended before its first sample.
	if code := command.ExitCode(); code != exitcode.OK || errors.Is(err, exitcode.ErrNoSamples) {
		if err != nil {
			advice.Complain(s.streams, err)
		}
		return exitcode.StatusError(code)
	}
	return err
}

// record records the selected processes until ctx is done, and writes, sends and prints the result. Once
// interrupted is done, it waits for files and collectors as briefly as possible. If ready is not nil, record
// calls it once sampling has started.
func (s *session) record(ctx, interrupted context.Context, selection recording.Selection, ready func() error) error {
	// The outputs are opened first, so that errors are reported before the recording.
	out, err := s.openOutputs(interrupted)
	if err != nil {
		return err
	}
	// A progress bar would overwrite the output of a recorded command.
	if terminal.InForeground(s.streams.Stderr) && s.targets.command == nil {
		s.progress = newProgressBar(s.streams.Stderr, s.untilEnd())
	}
	result, err := s.measure(ctx, out, selection, ready)
	if err != nil {
		out.discard()
		s.progress.done()
		return err
	}
	written, err := out.close()
	empty := written == "" && err == nil
	s.progress.done()
	delivery := out.delivery()
	if s.repeat {
		out.complain(delivery)
		if out.unsent > 0 {
			err = errors.Join(err, fmt.Errorf("%d samples of the whole recording were not sent", out.unsent))
		}
	} else {
		err = errors.Join(err, deliveryError(delivery))
	}
	err = errors.Join(err, s.show(result, delivery))
	none := s.nothing(result)
	if path := s.profile.path; path != "" && path != "-" && empty && (none != nil || !s.repeat) {
		s.streams.Complainf("%s was not written", display.String(path))
	}
	err = errors.Join(err, none)
	s.showWritten(written)
	return err
}

// nothing returns why there is nothing to show, or nil.
func (s *session) nothing(r *results) error {
	s.count(r)
	switch {
	case s.wall != nil && s.processes == 0:
		return s.noSpans()
	case s.wall != nil && r.wall.Filtered > 0 && s.seen == 0 && s.samples == 0:
		return s.nothingPassed(r.wall.Filtered, r.wall.FilteredAttributes)
	case s.wall == nil && s.samples == 0:
		return s.noSamples(r.sampled)
	case s.cpu == nil && s.alloc != nil && s.alloc.live && s.collections == 0:
		return &noSamplesError{
			"no garbage collection has begun and completed during the recording, so it is not known what is live",
			"Record for longer (--duration): the Go runtime collects when the heap has grown by GOGC percent, and at least every two minutes.",
		}
	default:
		return nil
	}
}

// show prints the results of a recording or of a period.
func (s *session) show(r *results, d export.Delivery) error {
	s.complain(r)
	if s.report.quiet {
		return nil
	}
	p := &report.Recording{
		Subject: s.targets.String(), PID: s.pid(), Started: s.targets.command != nil,
		Wall: r.wall, Delivery: d,
	}
	if s.alloc != nil {
		p.Alloc = r.sampled
	}
	if s.cpu != nil {
		p.CPU, p.Frequency = r.sampled, s.cpu.frequency
	}
	if s.wall != nil {
		p.Snapshots = s.wall.frequency
	}
	if s.report.json {
		return p.WriteJSON(s.reportTo(), &s.report.Tables)
	}
	return p.WriteText(s.reportTo(), &s.report.Tables)
}

// pid returns the id of the command, or of the process if exactly one id was given. Otherwise it returns 0.
func (s *session) pid() int {
	if len(s.targets.pids) != 1 {
		return s.started
	}
	return s.targets.pids[0]
}

func (s *session) reportTo() io.Writer {
	if s.profile.path == "-" || s.targets.command != nil && !s.report.json {
		return s.streams.Stderr
	}
	return s.streams.Stdout
}

// showWritten prints the path of the profile, if a profile was written.
func (s *session) showWritten(path string) {
	if path == "" || path == "-" || s.report.json || s.report.quiet {
		return
	}
	text := fmt.Sprintf("\nWrote %s\n", display.String(path))
	switch s.profile.format {
	case export.Pprof:
		text += fmt.Sprintf("View it with: go tool pprof -http=localhost:0 %s\n", display.Shell(path))
	case export.HTML:
		text += "Open it in a browser\n"
	}
	_, _ = fmt.Fprint(s.reportTo(), text)
}
