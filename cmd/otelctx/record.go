// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
)

// recordCommand is otelctx record.
type recordCommand struct {
	recordTargets

	Duration *time.Duration `help:"How long to record, in seconds or as 1m30s; 0 goes on until interrupted, or until the processes end. Without it 10s, or until the command ends." name:"duration" placeholder:"TIME" short:"d"`

	Filters []recording.Filter `help:"Keep only samples with this attribute, of the resource, the span or the sample; trace_id and span_id are attributes too. Several must all hold." name:"filter" placeholder:"KEY=VALUE" sep:"none"`

	Stacks bool `help:"Record stacks, as perf does by -g. It is always done." name:"stacks" short:"g"`

	Wall bool `help:"Record where the wall-clock time of spans goes, waiting included, in place of CPU time. It needs no capabilities but the right to read the processes." name:"wall"`

	// Frequency is Freq, or what it is without that.
	Freq      *int `help:"How many samples to take in a second of CPU time, 99 unless you say; with --wall how often to look in a second, 20 unless you say." name:"freq" placeholder:"N" short:"F"`
	Frequency int  `kong:"-"`

	Output    string  `help:"Write the profile to a file, in the format that its name ends in; - is standard output."           name:"output"                                            placeholder:"FILE"                                                       short:"o"`
	Format    string  `default:""                                                                                               enum:",pprof,otlp,json,jsonl,folded,html"                help:"The format of --output: pprof, otlp, json, jsonl, folded or html." name:"format"  placeholder:"FORMAT"`
	Endpoint  *string `help:"Send the profile to a collector by OTLP."                                                          name:"otlp-endpoint"                                     placeholder:"URL"`
	Repeat    bool    `help:"Go on after --duration, without a pause: send a profile and show the tables each time."            name:"repeat"`
	Kernel    bool    `help:"Record the kernel's part of stacks too."                                                           name:"kernel"`
	NoSymbols bool    `help:"Do not name functions: the profile has addresses and build ids, by which they can be named later." name:"no-symbols"`
	IDs       bool    `help:"Put the ids of spans on samples as attributes too, for backends that drop links."                  name:"id-attributes"`
	Carrier   string  `default:""                                                                                               enum:",labels,record,goroutine_table,thread_slots"       help:"Read only labels, record, goroutine_table or thread_slots."        name:"carrier" placeholder:"NAME"`
	Top       int     `default:"10"                                                                                             help:"How many rows a table has; 0 shows all."           name:"top"`
	JSON      bool    `help:"Print a JSON object instead of tables."                                                            name:"json"`

	GroupBy string `help:"Show one kind of table alone: span, endpoint, trace, service, function, attribute, or attribute=KEY." name:"group-by" placeholder:"KIND"`
}

// Help is shown by otelctx record --help.
func (*recordCommand) Help() string {
	return "  otelctx record PID...                 processes that run\n" +
		"  otelctx record --service checkout     a service; also --name, --cgroup, --all\n" +
		"  otelctx record -- ./service -port 80  a command, from its first instruction\n\n" +
		"Samples what processes use the processor for, each sample with the span that the thread was in at that moment, and " +
		"shows which spans and traces used most. Processes need not publish anything to be recorded, but then there are no " +
		"spans. What they begin to publish meanwhile is noticed within a second.\n\n" +
		"What attributes a process publishes with its spans are on the samples: in OTLP as attributes, in pprof as tags.\n\n" +
		"A sample's span is the one of the goroutine that ran, or none. Only of processes that show their spans in slots of " +
		"layout 1 alone, or do not say where the Go runtime keeps goroutines, it may be another one: such samples are counted " +
		"as unproven, and have the attribute otelctx.span.unproven in the profile.\n\n" +
		"Where a process shows its spans in several ways the best one counts: the goroutine's record, its slot, the thread's " +
		"slot. --carrier reads one of them alone, to see what a profiler sees that knows only that one: record, " +
		"goroutine_table, thread_slots, or labels. Labels are the goroutine's runtime/pprof labels trace_id and span_id, 32 and " +
		"16 lower-case hexadecimal digits, whoever has set them. They are read as the OpenTelemetry eBPF profiler reads them: " +
		"the first 10 labels, keys cut to 15 bytes, values cut to 47. A label may outlive its span. The process must say where " +
		"goroutines keep labels, as services with spanctx do even without records, and be built with Go 1.24 to 1.27. A process " +
		"without the chosen carrier is named in a warning.\n\n" +
		"The tables say what the processor was used for: the program itself, the Go runtime, its garbage collection, its " +
		"scheduler when it is idle, and with --kernel the kernel; by which functions; and in which requests and spans, if the " +
		"process publishes their names. A request or span that no sample has met is not counted, so that what each of them " +
		"used is at most what stands behind ≤. --group-by shows one kind of table alone, of attributes those of all spans, or " +
		"of one key.\n\n" +
		"Tables and --json are made of at most 16,384 spans with 8 MiB of attributes, those with the most samples, also with --top=0; the profile has all.\n\n" +
		"With --no-symbols no symbols are read, and the profile has no names of functions: each location has its address and its " +
		"mapping, with the file's path and build ids. go tool pprof names them where the same files are, as do backends that have " +
		"their symbols.\n\n" +
		"A sample's span is a link of the sample. With --id-attributes its ids are attributes too: trace_id, span_id and " +
		"otelctx.local_root_span_id. That is for backends that drop links, such as Parca. Most backends make a label of each " +
		"attribute, and ids are too many for most of them.\n\n" +
		"It ends after --duration, on Ctrl-C, when its terminal goes away, or when the processes that are named by their ids end, and writes what there is, with exit code 0 in each " +
		"case. A second Ctrl-C ends it at once. With --repeat, which needs --otlp-endpoint, --duration does not end " +
		"it: each time one profile ends and the next one begins, and no sample is missing in between.\n\n" +
		"What a collector does not take waits, up to 32 MiB, and is sent again after pauses that grow to 10 s. What there is no " +
		"room for is dropped, the oldest first, as is what the collector rejects, and what it does not take for " +
		"OTEL_EXPORTER_OTLP_TIMEOUT after the end. Such samples are counted and told.\n\n" +
		"With --wall it looks at the goroutines of the processes about 20 times in a second, and takes what each one does for what it has " +
		"done since the look before. A goroutine counts once, for the live span that it started last. The tables say how the wall-clock " +
		"time of spans divides into running, being runnable, and the kinds of waits, by endpoint and span name, and which functions wait. What runs is counted too " +
		"low, by a tenth to a third, since looking competes for the processors: take CPU time from a recording without --wall. Processes are " +
		"chosen by their ids. Values in the profile are nanoseconds of the type wall; in flame graphs a frame such as [waiting: select] ends each stack. With " +
		"--json: {start_time_unix_nano, duration_nano, frequency, looks, late_nano, latest_nano, overloaded, goroutines, sampled, torn, lost, ended, " +
		"span_names: [{service, endpoint, name, wall_nano, error_nano, running_nano, runnable_nano, unknown_nano, waits_nano: {KIND: NANO}, looks}], " +
		"functions: [{service, function, waiting_for, wall_nano}]}.\n\n" +
		"A command behind -- is recorded until it ends, with its children, which are noticed within a quarter of a second. Signals are passed on " +
		"to it, and otelctx exits with its code. It has the rights of whoever runs otelctx: no capability of otelctx's file, and no rights " +
		"of a set-user-id program if root does not run it. Standard output is the command's: tables go to standard error. When --duration is " +
		"over, the command goes on, and otelctx waits for it; timeout 10 otelctx record -- COMMAND ends both.\n\n" +
		"A file is pprof if its name ends in .pb.gz, .pprof.gz or .pprof, OTLP protobuf if in .otlp, OTLP JSON if in .json, and " +
		"OTLP JSON with a message in each line if in .jsonl, stacks in lines if in .folded, and a page with a flame graph if in " +
		".html; --format says it for other names, and for -, standard output, where " +
		"the tables then go to standard error. New files are for their owner's eyes alone. An empty " +
		"--otlp-endpoint is where OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT says. The other " +
		"OTEL_EXPORTER_OTLP_ variables, PROTOCOL (grpc, or http/protobuf) among them, count in any case.\n\n" + recordPrivileges + "\n\n" +
		"With --json: {pid, start_time_unix_nano, duration_nano, frequency, samples, attributed, unproven, lost, ended,\n" +
		"replaced, cut, truncated, spans_left_out, dropped, filtered, sent, unsent, waiting,\n" +
		"processes: [{pid, service, samples, attributed}],\n" +
		"spans: [{service, name, trace_id, span_id, samples, unproven, cpu_nano, attributes: {KEY: VALUE}}],\n" +
		"traces: [{service, trace_id, spans, samples, cpu_nano}],\n" +
		"work: [{work, samples, attributed, cpu_nano}], functions: [{service, function, flat, cumulative}],\n" +
		"endpoints: [{service, endpoint, requests, samples, cpu_nano}],\n" +
		"span_names: [{service, name, spans, samples, cpu_nano}],\n" +
		"attributes: [{key, value, samples, cpu_nano}]}. Attributes are those that --group-by asks for. pid is 0 where several processes are chosen. A sample stands for cpu_nano / samples " +
		"of CPU time."
}

// recordPrivileges says what recording needs.
const recordPrivileges = "It needs the capabilities CAP_BPF and CAP_PERFMON, which the file may have: " +
	"sudo setcap cap_bpf,cap_perfmon+ep otelctx. Where kernel.perf_event_paranoid is above 2, as by Debian's default, it needs root. Beside that it may do what its user may: to record the processes " +
	"of others needs CAP_SYS_PTRACE, and --kernel needs CAP_SYSLOG where kernel.kptr_restrict is 1. Root has them all."

// Validate is called by kong.
func (c *recordCommand) Validate() error {
	if err := c.validate(); err != nil {
		return err
	}
	switch {
	case c.Freq != nil:
		c.Frequency = *c.Freq
	case c.Wall:
		c.Frequency = wallFrequency
	default:
		c.Frequency = cpuFrequency
	}
	if c.Wall {
		if err := c.validateWall(); err != nil {
			return err
		}
	}
	switch {
	case c.duration() < 0:
		return fmt.Errorf("--duration %v is negative", c.duration())
	case c.Frequency < 1:
		return fmt.Errorf("--freq %d is less than 1", c.Frequency)
	case c.Frequency > maxFrequency:
		return fmt.Errorf("--freq %d is more than %d: the kernel would silently take fewer samples", c.Frequency, maxFrequency)
	case c.Top < 0:
		return fmt.Errorf("--top %d is negative", c.Top)
	case c.Repeat && (c.Endpoint == nil || c.Output != "" || c.duration() == 0):
		return errors.New("--repeat needs --otlp-endpoint and --duration, and cannot be used with --output")
	}
	if slices.Contains([]string{"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}, c.Output) {
		c.Output = "-" // So that nothing else is written there.
	}
	if group, err := groupOf(c.GroupBy); err != nil {
		return err
	} else if group == groupFunction && c.NoSymbols {
		return errors.New("--group-by function needs the names of functions: leave out --no-symbols")
	}
	if c.Output == "-" && c.Command != nil {
		return errors.New("--output=-: standard output is the command's")
	}
	if c.Output == "" && c.Format != "" {
		return errors.New("--format needs --output")
	}
	if c.Output != "" && c.Format == "" {
		format, err := export.FormatOf(c.Output)
		if err != nil {
			return fmt.Errorf("--output: %w: say --format", err)
		}
		c.Format = string(format)
	}
	return nil
}

// carriers are the names of --carrier.
var carriers = map[string]sampler.Carrier{
	"labels":          sampler.Labels,
	"record":          sampler.GoroutineRecord,
	"goroutine_table": sampler.GoroutineTable,
	"thread_slots":    sampler.ThreadSlots,
}

// How often samples are taken unless the user says.
const cpuFrequency, wallFrequency = 99, 20

// maxFrequency is up to what frequency the kernel was seen to take all samples.
const maxFrequency = 49999

// memoryLimit is from how many bytes on memory is collected more often. Most recordings stay
// far below; symbols and stacks of hostile processes, which are bounded, may not.
const memoryLimit = 100 << 20

// duration is how long to record, 0 for as long as there is something to record.
func (c *recordCommand) duration() time.Duration {
	const usual = 10 * time.Second
	switch {
	case c.Duration != nil:
		return *c.Duration
	case c.Command != nil && !c.Repeat:
		return 0
	default:
		return usual
	}
}

// Run is called by kong.
func (c *recordCommand) Run(s streams) error {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if c.Command != nil {
		return c.recordStarted(s)
	}
	if c.Wall {
		return c.recordWall(s)
	}
	ctx, release := untilInterrupted()
	defer release()
	return c.record(ctx, s, c.selection(), nil)
}

// record records what is selected, and writes, sends and shows what was recorded. ready, if not
// nil, is called when that is being recorded.
func (c *recordCommand) record(ctx context.Context, s streams, selection recording.Selection, ready func() error) error {
	// What cannot go well is known before there is anything to lose.
	out, err := c.openOutputs(s) //nolint:contextcheck // What was recorded is sent when ctx is done.
	if err != nil {
		return err
	}
	result, err := c.run(ctx, s, out, selection, ready)
	if err != nil {
		out.discard()
		return err
	}
	written, err := out.close()
	delivery := out.delivery()
	if c.Repeat {
		out.complain(delivery)
	} else {
		err = errors.Join(err, deliveryError(delivery))
	}
	err = errors.Join(err, c.show(s, result, delivery))
	if written && c.Output != "-" && !c.JSON {
		_, _ = fmt.Fprint(c.reportTo(s), writtenText(c.Output, c.Format))
	}
	return err
}

// reportTo returns where the report goes to.
func (c *recordCommand) reportTo(s streams) io.Writer {
	if c.Output == "-" || c.Command != nil && !c.JSON {
		return s.stderr
	}
	return s.stdout
}

// show shows a recording, or what was recorded in a period.
func (c *recordCommand) show(s streams, r *recording.Result, d export.Delivery) error {
	c.complain(s, r)
	if c.JSON {
		return c.writeJSON(c.reportTo(s), r, d)
	}
	return c.writeText(c.reportTo(s), r)
}

// run records, and shows how far that is on a terminal.
func (c *recordCommand) run(ctx context.Context, s streams, out *outputs, selection recording.Selection, ready func() error) (*recording.Result, error) {
	config := recording.Config{
		Selection: selection, Ready: ready,
		Part:     out.add,
		Duration: c.duration(), Version: moduleVersion(),
		Filters: c.Filters,
		Unnamed: c.NoSymbols, IDAttributes: c.IDs,
		Attributes: strings.HasPrefix(c.GroupBy, groupAttribute),
		Sampler:    sampler.Config{Frequency: c.Frequency, KernelStacks: c.Kernel, Carrier: carriers[c.Carrier]},
		Warn:       func(err error) { s.complainf("%v", err) },
	}
	clearBar := func() {}
	if c.Repeat {
		config.Duration, config.Period = 0, c.duration()
		config.Report = func(r *recording.Result) {
			clearBar()
			d := out.delivery()
			out.complain(d)
			if err := c.show(s, r, d); err != nil {
				s.complainf("%v", err)
			}
		}
	}
	// What a command writes would be written over.
	if isTerminal(s.stderr) && c.Command == nil {
		bar := newProgress(s.stderr, config.Duration)
		defer bar.done()
		clearBar = func() { _ = bar.bar.Clear() }
		config.Progress = bar.show
		config.Warn = func(err error) {
			clearBar()
			s.complainf("%v", err)
		}
	}
	return recording.Record(ctx, config)
}

// complain says what the result does not show.
func (c *recordCommand) complain(s streams, r *recording.Result) {
	if r.Ended {
		ended := "has ended"
		if c.pid() == 0 {
			ended = "have ended"
		}
		s.complainf("%v %s", &c.recordTargets, ended)
	}
	if c.selecting() && len(r.Processes) == 0 {
		s.complainf("no process was found that matches, and has used the processor meanwhile")
	} else if !c.Repeat && r.Samples+r.Lost+r.Replaced+r.Filtered == 0 {
		s.complainf("there are no samples: processes are sampled only while they use the processor")
	}
	if r.Lost > 0 {
		s.complainf("%d samples were lost: a lower --freq, or a machine with less to do, loses none", r.Lost)
	}
	if r.Replaced > 0 {
		s.complainf("%d samples were left out: their process had just begun to run another program", r.Replaced)
	}
	if r.Unnamed > 0 {
		s.complainf("%d samples lack names of functions: finding them took too long, or it is not known what their process had mapped", r.Unnamed)
	}
	if r.Filtered > 0 {
		s.complainf("%d samples were left out by --filter", r.Filtered)
	}
	if r.Cut > 0 {
		s.complainf("%d samples have only the innermost frame of their stack, and no attributes of their span: their process has too many different ones", r.Cut)
	}
	if r.Truncated > r.Cut {
		s.complainf("%d samples lack the outermost frames of their stack: the kernel gives %d at most", r.Truncated-r.Cut, sampler.MaxFrames)
	}
	if r.SpansLeftOut > 0 {
		s.complainf("up to %d spans are not shown, though the profile has them: there are too many", r.SpansLeftOut)
	}
	if r.Dropped > 0 {
		s.complainf("%d attributes were left out, which no profile can have", r.Dropped)
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

// newProgress returns a bar for this duration, or for an unknown one if it is 0.
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
	// An error of the progress bar does not affect the recording.
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

// writtenText says where the profile is, and how to look at it.
func writtenText(path, format string) string {
	text := fmt.Sprintf("\nWrote %s\n", keyText(path))
	switch export.Format(format) {
	case export.Pprof:
		text += fmt.Sprintf("Look at it with: go tool pprof -http=localhost:0 %s\n", shellText(path))
	case export.HTML:
		text += "Open it in a browser\n"
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
