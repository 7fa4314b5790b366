// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/schollz/progressbar/v3"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/advice"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/version"
)

// recordCommand implements otelctx record.
type recordCommand struct {
	recordTargets

	Duration  *time.Duration     `group:"Sampling:" help:"How long to record: seconds, or a duration such as 1m30s. 0: until interrupted, or until the processes end. Default: 10s, or until the command ends."      name:"duration"   placeholder:"TIME"                                                                                short:"d"`
	Freq      rates              `group:"Sampling:" help:"Samples per second of CPU time, 99 by default; with --wall snapshots per second, 20 by default; with --wall --cpu both: 99,20."                            name:"freq"       placeholder:"N"                                                                                   short:"F"`
	Wall      bool               `group:"Sampling:" help:"Record where the wall-clock time of spans goes, waiting included, instead of CPU time. Needs only permission to read the processes."                       name:"wall"`
	CPU       bool               `group:"Sampling:" help:"With --wall: record CPU time as well, which needs the privileges for sampling."                                                                            name:"cpu"`
	Filters   []recording.Filter `group:"Sampling:" help:"Keep only samples with this attribute of the resource, the span or the sample; trace_id and span_id count as attributes. Repeated filters must all match." name:"filter"     placeholder:"KEY=VALUE"                                                                           sep:"none"`
	Kernel    bool               `group:"Sampling:" help:"Record the kernel's part of stacks too."                                                                                                                   name:"kernel"`
	NoSymbols bool               `group:"Sampling:" help:"Record addresses and build ids instead of function names."                                                                                                 name:"no-symbols"`
	Carrier   string             `default:""        enum:",labels,goroutine_record,goroutine_table,thread_slots"                                                                                                     group:"Sampling:" help:"Read spans from one place only: labels, goroutine_record, goroutine_table or thread_slots." name:"carrier" placeholder:"NAME"`
	Stacks    bool               `group:"Sampling:" help:"Record stacks. Always on; the flag is for those used to perf record -g."                                                                                   hidden:""         name:"stacks"                                                                                     short:"g"`

	Output   string  `group:"Profile:" help:"Write the profile to a file. The ending of its name selects the format: .pb.gz, .otlp, .json, .jsonl, .folded or .html. -: standard output." name:"output"                                                             placeholder:"FILE"                                                            short:"o"`
	Format   string  `default:""       enum:",pprof,otlp,json,jsonl,folded,html"                                                                                                          group:"Profile:"                                                          help:"The format, for other names: pprof, otlp, json, jsonl, folded or html." name:"format"   placeholder:"FORMAT"`
	Endpoint *string `group:"Profile:" help:"Send the profile to a collector by OTLP. Empty: to the one that OTEL_EXPORTER_OTLP_ENDPOINT names."                                          name:"otlp-endpoint"                                                      placeholder:"URL"`
	Repeat   bool    `group:"Profile:" help:"After --duration, write or send the profile, print the tables, and go on without a gap."                                                     name:"repeat"`
	Keep     int     `default:"0"      group:"Profile:"                                                                                                                                   help:"With --repeat and --output, how many of the files to keep; 0: all." name:"keep"                                                                   placeholder:"N"`
	IDs      bool    `group:"Profile:" help:"Add the ids of spans to each sample as attributes, for backends that drop links."                                                            name:"id-attributes"`

	GroupBy string `group:"Report:" help:"Print one kind of table: span, endpoint, trace, service, function, attribute or attribute=KEY." name:"group-by"                 placeholder:"KIND"`
	Top     int    `default:"10"    group:"Report:"                                                                                       help:"Rows of a table; 0: all." name:"top"`
	JSON    bool   `group:"Report:" help:"Print a JSON object instead of tables."                                                         name:"json"`

	// Frequency is the number of samples per second of CPU time. Snapshots is the number of snapshots per second.
	Frequency int `kong:"-"`
	Snapshots int `kong:"-"`
	// samples is the number of samples in all periods.
	samples uint64
}

// Help returns the text of otelctx record --help.
func (*recordCommand) Help() string {
	return `Prints which functions, requests and spans used the CPU, and can write a profile or send it to a collector. Any process can ` +
		`be recorded; those that publish their spans, as Go services with otelctx do, have them in the profile.

Examples:

    otelctx record 1234                                   a process, for 10 s
    otelctx record --service checkout -d 30 -o cpu.html   a flame graph of a service
    otelctx record -o cpu.pb.gz -- ./service -port 80     a command, until it ends
    otelctx record --wall 1234                            wall-clock time, waiting included
    otelctx record --wall --cpu -o both.pb.gz 1234        the same, and CPU time
    otelctx record --all --repeat --otlp-endpoint http://localhost:4317

Needs root, or CAP_BPF and CAP_PERFMON for processes of the same user. --wall without --cpu only needs to read the processes.

More: otelctx man | man -l -, and ` + recordingURL
}

// recordName is the name of the command.
const recordName = "record"

const recordingURL = "https://github.com/otelctx/otelctx/blob/main/docs/recording.md"

//go:embed record_manual.txt
var recordManual string

// Manual returns the text that the manual page adds to the help.
func (*recordCommand) Manual() string { return recordManual }

// Validate is called by kong.
func (c *recordCommand) Validate() error {
	if err := c.validate(); err != nil {
		return err
	}
	c.Frequency, c.Snapshots = cpuFrequency, wallFrequency
	frequencies := []*int{&c.Frequency, &c.Snapshots}
	switch {
	case c.Wall && !c.CPU:
		frequencies = frequencies[1:]
	case !c.Wall:
		frequencies = frequencies[:1]
	}
	if len(c.Freq) > len(frequencies) {
		return fmt.Errorf("--freq has %d numbers: only with --wall --cpu there may be two", len(c.Freq))
	}
	for i, freq := range c.Freq {
		if *frequencies[i] = freq; freq < 1 {
			return fmt.Errorf("--freq %d is less than 1", freq)
		}
	}
	if c.Wall {
		if err := c.validateWall(); err != nil {
			return err
		}
	}
	switch {
	case c.duration() < 0:
		return fmt.Errorf("--duration %v is negative", c.duration())
	case c.Frequency > maxFrequency:
		return fmt.Errorf("--freq %d is more than %d: the kernel would silently take fewer samples", c.Frequency, maxFrequency)
	case c.Top < 0:
		return fmt.Errorf("--top %d is negative", c.Top)
	case c.Repeat && (c.Endpoint == nil && c.Output == "" || c.duration() == 0):
		return errors.New("--repeat needs --duration, and --otlp-endpoint or --output")
	case c.Keep < 0:
		return fmt.Errorf("--keep %d is negative", c.Keep)
	case c.Keep > 0 && (!c.Repeat || c.Output == ""):
		return errors.New("--keep needs --repeat and --output")
	}
	if slices.Contains([]string{"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}, c.Output) {
		c.Output = "-" // Then the report is written to standard error.
	}
	if group, err := groupOf(c.GroupBy); err != nil {
		return err
	} else if group == groupFunction && c.NoSymbols {
		return errors.New("--group-by function needs the names of functions: leave out --no-symbols")
	}
	if c.Output == "-" && c.Repeat {
		return errors.New("--output=- with --repeat: there is a file for each period")
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
	if c.Wall && c.CPU && c.Format == string(export.Folded) {
		return errors.New("--wall --cpu: folded stacks have one number each: choose another format, such as -o profile.pb.gz, or leave out --cpu")
	}
	return nil
}

// carriers contains the values that --carrier accepts.
var carriers = map[string]sampler.Carrier{
	"labels":           sampler.Labels,
	"goroutine_record": sampler.GoroutineRecord,
	"goroutine_table":  sampler.GoroutineTable,
	"thread_slots":     sampler.ThreadSlots,
}

// cpuFrequency and wallFrequency are the defaults of --freq, in Hz.
const cpuFrequency, wallFrequency = 99, 20

// rates is the value of --freq: numbers separated by commas. If the flag is repeated, the last value counts. To
// an ordinary slice, kong would append the values.
type rates []int

// Decode implements [kong.MapperValue].
func (r *rates) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("number", &text); err != nil {
		return err
	}
	*r = nil
	for number := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(number)
		if err != nil {
			return fmt.Errorf("%q is not a number", number)
		}
		*r = append(*r, n)
	}
	return nil
}

// maxFrequency is the highest frequency at which the kernel took all samples in our tests.
const maxFrequency = 49999

// memoryLimit is the memory use in bytes near which garbage is collected more often. Most recordings stay far
// below it, but the symbols and stacks of hostile processes, although bounded, may exceed it.
const memoryLimit = 100 << 20

// duration returns the time to record. 0 means until the user interrupts or the processes end.
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
func (c *recordCommand) Run(s terminal.Streams) error {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if c.Command != nil {
		return c.recordStarted(s)
	}
	if c.Wall {
		return c.recordWall(s)
	}
	ctx, release := terminal.UntilInterrupted()
	defer release()
	return c.record(ctx, ctx, s, c.selection(), nil)
}

// record records the selected processes until ctx is done, and writes, sends and prints the result. Once
// interrupted is done, it waits for files and collectors as briefly as possible. If ready is not nil, record
// calls it once sampling has started.
func (c *recordCommand) record(ctx, interrupted context.Context, s terminal.Streams, selection recording.Selection, ready func() error) error {
	// The outputs are opened first, so that errors are reported before the recording.
	out, err := c.openOutputs(interrupted, s)
	if err != nil {
		return err
	}
	result, err := c.run(ctx, s, out, selection, ready)
	if err != nil {
		out.discard()
		return err
	}
	c.samples += result.Samples
	written, err := out.close()
	delivery := out.delivery()
	if c.Repeat {
		out.complain(delivery)
		if out.unsent > 0 {
			err = errors.Join(err, fmt.Errorf("%d samples of the whole recording were not sent", out.unsent))
		}
	} else {
		err = errors.Join(err, deliveryError(delivery))
	}
	err = errors.Join(err, c.show(s, result, delivery))
	if c.samples == 0 {
		err = errors.Join(err, c.noSamples(result))
		if c.Output != "" && c.Output != "-" {
			s.Complainf("%s was not written", display.String(c.Output))
		}
	}
	c.showWritten(s, written)
	return err
}

// showWritten prints the path of the profile, if a profile was written.
func (c *recordCommand) showWritten(s terminal.Streams, path string) {
	if path != "" && path != "-" && !c.JSON {
		_, _ = fmt.Fprint(c.reportTo(s), writtenText(path, c.Format))
	}
}

// reportTo returns the stream for the report.
func (c *recordCommand) reportTo(s terminal.Streams) io.Writer {
	if c.Output == "-" || c.Command != nil && !c.JSON {
		return s.Stderr
	}
	return s.Stdout
}

// show prints the result of a recording or of a period.
func (c *recordCommand) show(s terminal.Streams, r *recording.Result, d export.Delivery) error {
	c.complain(s, r)
	if c.JSON {
		return display.WriteJSON(c.reportTo(s), c.deliveredDocument(r, d))
	}
	return c.writeText(c.reportTo(s), r)
}

// run records, with a progress bar on terminals.
func (c *recordCommand) run(ctx context.Context, s terminal.Streams, out *outputs, selection recording.Selection, ready func() error) (*recording.Result, error) {
	config := recording.Config{
		Selection: selection, Ready: ready,
		Part:     out.add,
		Duration: c.duration(), Version: version.Module(),
		Filters: c.Filters,
		Unnamed: c.NoSymbols, IDAttributes: c.IDs,
		Attributes: strings.HasPrefix(c.GroupBy, groupAttribute),
		Sampler:    sampler.Config{Frequency: c.Frequency, KernelStacks: c.Kernel, Carrier: carriers[c.Carrier]},
		Warn:       func(err error) { s.Complainf("%v", err) },
	}
	clearBar := func() {}
	if c.Repeat {
		config.Duration, config.Period = 0, c.duration()
		config.Report = func(r *recording.Result) {
			clearBar()
			c.samples += r.Samples
			d := out.delivery()
			out.complain(d)
			written := out.roll(r.End)
			if err := c.show(s, r, d); err != nil {
				s.Complainf("%v", err)
			}
			c.showWritten(s, written)
		}
	}
	// A progress bar would overwrite the output of a recorded command.
	if terminal.IsTerminal(s.Stderr) && c.Command == nil {
		bar := newProgress(s.Stderr, config.Duration)
		defer bar.done()
		clearBar = func() { _ = bar.bar.Clear() }
		config.Progress = bar.show
		config.Warn = func(err error) {
			clearBar()
			s.Complainf("%v", err)
		}
	}
	return recording.Record(ctx, config)
}

// complain prints warnings about data that is missing from the result, with the reasons.
func (c *recordCommand) complain(s terminal.Streams, r *recording.Result) {
	if r.Ended {
		ended := "has ended"
		if c.pid() == 0 {
			ended = "have ended"
		}
		s.Complainf("%v %s", &c.recordTargets, ended)
	}
	for _, missing := range []struct {
		count uint64
		text  string
	}{
		{r.Lost, "samples were lost, because otelctx could not read them in time: a lower --freq loses fewer"},
		{r.Replaced, "samples were left out: their process had just executed another program"},
		{r.Cut, "samples have only the innermost frame of their stack, and no attributes of their span: their process has too many different stacks"},
		{r.Truncated - r.Cut, fmt.Sprintf("samples lack the outermost frames of their stack: the kernel records at most %d", sampler.MaxFrames)},
		{r.SpansLeftOut, "or fewer spans are missing from the tables, those with the fewest samples; the profile has them"},
		{r.Dropped, "attributes were left out: profiles cannot hold them"},
		{r.Unnamed, "samples lack function names: looking them up took too long, or it is not known what their process had mapped"},
		{r.Unproven, "samples have an unproven span: their process does not say which goroutine the span belongs to, so it may be an earlier span"},
	} {
		if missing.count > 0 {
			s.Complainf("%d %s", missing.count, missing.text)
		}
	}
	if r.Filtered > 0 && r.Samples > 0 {
		s.Complainf("--filter left out %d samples", r.Filtered)
	}
	// If the selected service was found, the unread processes probably belong to other services.
	if len(c.Services) == 0 || r.Recorded == 0 {
		advice.Unread(s, r.Unread)
	}
	if r.NotExamined > 0 {
		s.Complainf("%d processes were not examined before the recording ended: record for longer (--duration), or select fewer processes", r.NotExamined)
	}
}

// progress is a progress bar on a terminal.
type progress struct {
	bar   *progressbar.ProgressBar
	total time.Duration
}

// newProgress returns a progress bar; total is 0 if the duration is unknown.
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
	p.bar.Describe(fmt.Sprintf("Recording for %v: %s samples", elapsed.Truncate(time.Second), display.Digits(samples)))
	// Errors of the progress bar must not affect the recording.
	if p.total > 0 {
		_ = p.bar.Set64(min(elapsed, p.total-time.Millisecond).Milliseconds())
	} else {
		_ = p.bar.Add(1)
	}
}

func (p *progress) done() { _ = p.bar.Finish() }

// writtenText says where the profile is and how to view it.
func writtenText(path, format string) string {
	text := fmt.Sprintf("\nWrote %s\n", display.String(path))
	switch export.Format(format) {
	case export.Pprof:
		text += fmt.Sprintf("View it with: go tool pprof -http=localhost:0 %s\n", display.Shell(path))
	case export.HTML:
		text += "Open it in a browser\n"
	}
	return text
}
