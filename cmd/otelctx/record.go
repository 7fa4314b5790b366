// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/sampler"
)

// recordCommand is otelctx record.
type recordCommand struct {
	PID       int           `arg:""                                                                                      help:"The process to record."                                                      name:"pid"         optional:""`
	All       bool          `help:"Record every process that publishes a context, also those that come to it meanwhile." name:"all"`
	Duration  time.Duration `default:"10s"                                                                               help:"How long to record; 0 goes on until interrupted, or until the process ends." name:"duration"`
	Frequency int           `default:"99"                                                                                help:"How many samples to take in a second of CPU time."                           name:"freq"`
	Output    string        `help:"Write the profile to a file, in the format that its name ends in."                    name:"output"                                                                      placeholder:"FILE" short:"o"`
	Endpoint  *string       `help:"Send the profile to a collector by OTLP/gRPC."                                        name:"otlp-endpoint"                                                               placeholder:"URL"`
	Repeat    bool          `help:"Record again and again, each time for --duration, and send each profile."             name:"repeat"`
	Kernel    bool          `help:"Record the kernel's part of stacks too."                                              name:"kernel"`
	Top       int           `default:"10"                                                                                help:"How many spans and traces to show; 0 shows all."                             name:"top"`
	JSON      bool          `help:"Print a JSON object instead of tables."                                               name:"json"`
}

// Help is shown by otelctx record --help.
func (*recordCommand) Help() string {
	return "Samples what processes use the processor for, each sample with the span that the thread was in at that moment, and " +
		"shows which spans and traces used most. Processes need not publish anything to be recorded, but then there are no " +
		"spans. What they begin to publish meanwhile is noticed within a second.\n\n" +
		"What attributes a process publishes with its spans are on the samples: in OTLP as attributes, in pprof as tags.\n\n" +
		"A sample's span is the one of the goroutine that ran, or none. Only of processes that show their spans in slots of " +
		"layout 1 alone, or do not say where the Go runtime keeps goroutines, it may be another one: such samples are counted " +
		"as unproven, and have the attribute otelctx.span.unproven in the profile.\n\n" +
		"It ends after --duration, on Ctrl-C, or when the process ends, and writes what there is, with exit code 0 in each " +
		"case. A second Ctrl-C ends it at once. With --repeat, which takes --all and --otlp-endpoint, --duration does not end " +
		"it, nor does a collector that does not take a profile: that one is lost.\n\n" +
		"A file is pprof if its name ends in .pb.gz, .pprof.gz or .pprof, OTLP JSON if in .json, and else OTLP protobuf. An empty " +
		"--otlp-endpoint is where OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT says; the other " +
		"OTEL_EXPORTER_OTLP_ variables count in any case.\n\n" + recordPrivileges + "\n\n" +
		"With --json: {pid, start_time_unix_nano, duration_nano, frequency, samples, attributed, unproven, lost, ended,\n" +
		"processes: [{pid, service, samples, attributed}],\n" +
		"spans: [{service, trace_id, span_id, samples, unproven, cpu_nano, attributes: {KEY: VALUE}}],\n" +
		"traces: [{service, trace_id, spans, samples, cpu_nano}]}. pid is 0 for --all. A sample stands for cpu_nano / samples " +
		"of CPU time."
}

// recordPrivileges says what recording takes.
const recordPrivileges = "It takes the capabilities CAP_BPF and CAP_PERFMON, whatever kernel.perf_event_paranoid says, and for " +
	"processes of other users CAP_SYS_PTRACE; " +
	"names of the kernel's functions take CAP_SYSLOG where kernel.kptr_restrict is 1. Root has them all; without it: sudo setcap " +
	"cap_bpf,cap_perfmon+ep otelctx."

// Validate is called by kong.
func (c *recordCommand) Validate() error {
	switch {
	case c.PID < 0:
		return fmt.Errorf("%d is not a process id", c.PID)
	case (c.PID == 0) != c.All:
		return errors.New("either a process id or --all")
	case c.Duration < 0:
		return fmt.Errorf("--duration %v is negative", c.Duration)
	case c.Frequency < 1:
		return fmt.Errorf("--freq %d is less than 1", c.Frequency)
	case c.Top < 0:
		return fmt.Errorf("--top %d is negative", c.Top)
	case c.Repeat && (!c.All || c.Endpoint == nil || c.Output != "" || c.Duration == 0):
		return errors.New("--repeat takes --all, --otlp-endpoint and a --duration, and no --output")
	}
	return nil
}

// Run is called by kong.
func (c *recordCommand) Run(s streams) error {
	// What cannot go well is known before there is anything to lose.
	if c.Output != "" {
		if _, err := os.Stat(filepath.Dir(c.Output)); err != nil {
			return fmt.Errorf("--output: %w", err)
		}
	}
	var client *export.Client
	if c.Endpoint != nil {
		var err error
		if client, err = export.NewClient(*c.Endpoint); err != nil {
			return fmt.Errorf("--otlp-endpoint: %w", err)
		}
		defer func() { _ = client.Close() }()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// From the first signal on the next one is nobody's but the system's.
	context.AfterFunc(ctx, stop)
	for {
		result, err := c.record(ctx, s)
		if err != nil {
			return err
		}
		err = c.deliver(s, client, result)
		if !c.Repeat || ctx.Err() != nil {
			return err
		}
		if err != nil {
			s.complainf("%v", err)
		}
	}
}

// deliver sends, writes and shows a recording. client may be nil.
func (c *recordCommand) deliver(s streams, client *export.Client, result *recording.Result) error {
	var errs []error
	if c.Output != "" {
		errs = append(errs, export.WriteFile(c.Output, result.Data))
	}
	if client != nil {
		errs = append(errs, client.Export(context.Background(), result.Data))
	}
	c.complain(s, result)
	write := c.writeText
	if c.JSON {
		write = c.writeJSON
	}
	errs = append(errs, write(s.stdout, result))
	if c.Output != "" && errs[0] == nil && !c.JSON {
		_, _ = fmt.Fprint(s.stdout, writtenText(c.Output))
	}
	return errors.Join(errs...)
}

// record records, and shows how far that is on a terminal.
func (c *recordCommand) record(ctx context.Context, s streams) (*recording.Result, error) {
	config := recording.Config{
		PID: c.PID, Duration: c.Duration, Version: version(),
		Sampler: sampler.Config{Frequency: c.Frequency, KernelStacks: c.Kernel},
		Warn:    func(err error) { s.complainf("%v", err) },
	}
	if isTerminal(s.stderr) {
		bar := newProgress(s.stderr, c.Duration)
		defer bar.done()
		config.Progress = bar.show
		config.Warn = func(err error) {
			_ = bar.bar.Clear()
			s.complainf("%v", err)
		}
	}
	return recording.Record(ctx, config)
}

// complain says what the result does not show.
func (c *recordCommand) complain(s streams, r *recording.Result) {
	if r.Ended {
		s.complainf("process %d has ended", c.PID)
	}
	if r.Lost > 0 {
		s.complainf("%d samples were lost: a lower --freq, or a machine with less to do, loses none", r.Lost)
	}
	if r.NotPermitted > 0 {
		s.complainf("processes that could not be examined for lack of permission: %d", r.NotPermitted)
		_, _ = fmt.Fprintln(s.stderr, permissionAdvice(os.DirFS("/proc")))
	}
	if r.Unproven > 0 {
		s.complainf("%d samples have a span that is not proven: the process does not say whose it is", r.Unproven)
	}
}

// progress is a bar on a terminal.
type progress struct {
	bar   *progressbar.ProgressBar
	total time.Duration
}

// newProgress returns a bar for so much time, 0 if there is no telling.
func newProgress(w io.Writer, total time.Duration) *progress {
	most := total.Milliseconds()
	if total == 0 {
		most = -1
	}
	return &progress{total: total, bar: progressbar.NewOptions64(most,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetSpinnerChangeInterval(0),
		progressbar.OptionSetDescription("Recording"),
	)}
}

func (p *progress) show(elapsed time.Duration, samples uint64) {
	p.bar.Describe(fmt.Sprintf("Recording for %v: %s samples", elapsed.Truncate(time.Second), groupDigits(samples)))
	// A bar that cannot be shown is none the worse for the recording.
	if p.total > 0 {
		_ = p.bar.Set64(min(elapsed, p.total-time.Millisecond).Milliseconds())
	} else {
		_ = p.bar.Add(1)
	}
}

func (p *progress) done() { _ = p.bar.Finish() }

// groupDigits returns n with a comma between each three digits.
func groupDigits(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// isPprof reports whether files of this name are written as pprof.
func isPprof(path string) bool {
	name := strings.ToLower(path)
	return strings.HasSuffix(name, ".pb.gz") || strings.HasSuffix(name, ".pprof") || strings.HasSuffix(name, ".pprof.gz")
}

// writtenText says where the profile is, and how to look at it.
func writtenText(path string) string {
	text := fmt.Sprintf("\nWrote %s\n", keyText(path))
	if isPprof(path) {
		text += fmt.Sprintf("Look at it with: go tool pprof -http=localhost:0 %s\n", shellText(path))
	}
	return text
}

// shellText returns s as a word of a shell's command line.
func shellText(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:@%,"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(escape(s), "'", `'\''`) + "'"
}
