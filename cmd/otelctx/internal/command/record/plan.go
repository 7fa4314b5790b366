// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
)

// plan describes a recording, after all flags have been checked.
type plan struct {
	targets targets
	// duration is the time to record, or of each period if repeat is true. 0 means until the user interrupts or
	// the processes end.
	duration time.Duration
	repeat   bool
	// cpu, alloc and wall are the sources. A source that is nil is not recorded. alloc and wall are not recorded together.
	cpu     *cpuPlan
	alloc   *allocPlan
	wall    *wallPlan
	filters filter.Filters
	profile profilePlan
	report  reportPlan
}

// cpuPlan says how to sample CPU time.
type cpuPlan struct {
	// frequency is the number of samples per second of CPU time.
	frequency int
	kernel    bool
	samplePlan
}

// allocPlan says how to sample allocations.
type allocPlan struct {
	// live reports whether to show what is in use instead of what was allocated.
	live bool
	samplePlan
}

// samplePlan says how to look up functions and spans of samples.
type samplePlan struct {
	unnamed bool
	carrier sampler.Carrier
}

// wallPlan says how to take snapshots of goroutines.
type wallPlan struct {
	// frequency is the number of snapshots per second.
	frequency int
}

// profilePlan says where profiles go.
type profilePlan struct {
	path   string // "" for no file, "-" for standard output
	format export.Format
	keep   int // 0: all
	// endpoint is the URL of a collector, "" for the one that the environment names, or nil for none.
	endpoint *string
	ids      bool
}

// reportPlan says what to print.
type reportPlan struct {
	report.Tables

	json, quiet bool
}

// newPlan checks the flags and turns them into a plan.
func (c *Command) newPlan() (*plan, error) {
	p := &plan{repeat: c.Profile.Repeat}
	for _, fill := range []func(*plan) error{c.planTargets, c.planSources, c.planTime, c.planProfile, c.planReport} {
		if err := fill(p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// planTargets checks that processes are selected in exactly one way.
func (c *Command) planTargets(p *plan) error {
	t := targets{
		all: c.Processes.All, command: c.Program,
		names: splitList(c.Processes.Names), services: splitList(c.Processes.Services), cgroups: splitList(c.Processes.Cgroups),
	}
	for _, pid := range slices.Concat(c.Processes.PIDs, c.Processes.PIDList) {
		if pid <= 0 {
			return fmt.Errorf("%d is not a process id", pid)
		}
		if !slices.Contains(t.pids, int(pid)) {
			t.pids = append(t.pids, int(pid))
		}
	}
	if t.command != nil && len(t.command) == 0 {
		return errors.New("expected a command after --")
	}
	if t.command != nil && c.Processes.Proc != "" {
		return errors.New("--proc is for processes that are running already, not for a command after --")
	}
	ways := 0
	for _, chosen := range []bool{len(t.pids) > 0, t.all, t.byName(), t.command != nil} {
		if chosen {
			ways++
		}
	}
	if ways != 1 {
		return errors.New("select processes in exactly one of these ways: process ids; --all; --service, --name and --cgroup; a command after --")
	}
	p.targets = t
	return nil
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

const (
	// cpuFrequency and wallFrequency are the defaults of --freq, in Hz.
	cpuFrequency, wallFrequency = 99, 20
	// maxCPUFrequency is the highest frequency at which the kernel took all samples in our tests.
	maxCPUFrequency = 49999
	// maxWallFrequency is the highest number of snapshots per second. Beyond it, a snapshot takes longer than the
	// interval.
	maxWallFrequency = 1000
)

// carriers contains the values that --carrier accepts.
var carriers = carriersByName(sampler.Labels, sampler.GoroutineRecord, sampler.GoroutineTable, sampler.ThreadSlots)

func carriersByName(all ...sampler.Carrier) map[string]sampler.Carrier {
	names := map[string]sampler.Carrier{}
	for _, c := range all {
		names[c.String()] = c
	}
	return names
}

// planSources decides what to record.
func (c *Command) planSources(p *plan) error {
	s := &c.Sampling
	var frequencies []*int // in the order in which --freq names them
	how := samplePlan{unnamed: s.NoSymbols, carrier: carriers[s.Carrier]}
	if s.Alloc {
		p.alloc = &allocPlan{s.Live, how}
	}
	switch {
	case s.Live && !s.Alloc:
		return errors.New("--live needs --alloc")
	case s.Alloc && s.Wall:
		return errors.New("--alloc cannot be used with --wall: record wall-clock time in another recording")
	case s.Alloc && !s.CPU && (s.Kernel || len(s.Freq) > 0):
		return errors.New("--alloc cannot be used with --kernel or --freq, unless --cpu records CPU time as well")
	}
	if s.CPU || !s.Wall && !s.Alloc {
		p.cpu = &cpuPlan{cpuFrequency, s.Kernel, how}
		frequencies = append(frequencies, &p.cpu.frequency)
	}
	if s.Wall {
		p.wall = &wallPlan{frequency: wallFrequency}
		frequencies = append(frequencies, &p.wall.frequency)
	}
	if len(s.Freq) > len(frequencies) {
		return fmt.Errorf("--freq has %d numbers: only with --wall --cpu there may be two", len(s.Freq))
	}
	for i, freq := range s.Freq {
		if *frequencies[i] = freq; freq < 1 {
			return fmt.Errorf("--freq %d is less than 1", freq)
		}
	}
	for _, f := range s.Filters {
		p.filters = append(p.filters, filter.Filter(f))
	}
	if p.wall != nil {
		if err := c.checkWall(p); err != nil {
			return err
		}
	}
	if p.cpu != nil && p.cpu.frequency > maxCPUFrequency {
		return fmt.Errorf("--freq %d is more than %d: the kernel would silently take fewer samples", p.cpu.frequency, maxCPUFrequency)
	}
	return nil
}

// checkWall rejects what --wall does not support.
func (c *Command) checkWall(p *plan) error {
	switch {
	case p.targets.command != nil:
		return errors.New("--wall cannot start a command: start it first, and select it by --name or its process id")
	case p.wall.frequency > maxWallFrequency:
		return fmt.Errorf("--wall: --freq %d is more than %d: a snapshot would take longer than the time until the next", p.wall.frequency, maxWallFrequency)
	case c.Sampling.NoSymbols, c.Profile.IDs:
		return errors.New("--wall cannot be used with --no-symbols or --id-attributes")
	case p.cpu == nil && (c.Sampling.Kernel || c.Sampling.Carrier != ""):
		return errors.New("--wall cannot be used with --kernel or --carrier, unless --cpu records CPU time as well")
	}
	return nil
}

// planTime decides how long to record.
func (c *Command) planTime(p *plan) error {
	const usual = 10 * time.Second
	switch {
	case c.Sampling.Duration != nil:
		p.duration = *c.Sampling.Duration
	case c.Program == nil || p.repeat:
		p.duration = usual
	}
	switch {
	case p.duration < 0:
		return fmt.Errorf("--duration %v is negative", p.duration)
	case p.repeat && p.duration == 0:
		return errors.New("--repeat needs periods: --duration 0 has no end")
	case p.repeat && c.Profile.Endpoint == nil && c.Profile.Output == "":
		return errors.New("--repeat needs --output or --otlp-endpoint: there is nothing to repeat but the tables")
	}
	return nil
}

// planProfile decides where profiles go.
func (c *Command) planProfile(p *plan) error {
	f := &c.Profile
	o := profilePlan{path: string(f.Output), format: export.Format(f.Format), keep: f.Keep, endpoint: f.Endpoint, ids: f.IDs}
	if slices.Contains([]string{"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}, o.path) {
		o.path = "-" // Then the report is written to standard error.
	}
	switch {
	case o.keep < 0:
		return fmt.Errorf("--keep %d is negative", o.keep)
	case o.keep > 0 && (!p.repeat || o.path == ""):
		return errors.New("--keep needs --repeat and --output")
	case o.path == "-" && p.repeat:
		return errors.New("--output=- with --repeat: there is a file for each period")
	case o.path == "-" && p.targets.command != nil:
		return errors.New("--output=-: standard output is the command's")
	case o.path == "" && o.format != "":
		return errors.New("--format needs --output")
	}
	if o.path != "" && o.format == "" {
		format, err := export.FormatOf(o.path)
		if err != nil {
			return fmt.Errorf("--output: %w: say --format", err)
		}
		o.format = format
	}
	if p.cpu != nil && (p.wall != nil || p.alloc != nil) && o.format == export.Folded {
		return errors.New("with --cpu and --wall or --alloc, folded stacks would have two numbers each: choose another format, such as -o profile.pb.gz, or leave out --cpu")
	}
	p.profile = o
	return nil
}

// planReport decides what to print.
func (c *Command) planReport(p *plan) error {
	group, err := report.ParseGroup(c.Report.GroupBy)
	switch {
	case err != nil:
		return err
	case c.Report.Top < 0:
		return fmt.Errorf("--top %d is negative", c.Report.Top)
	case c.Report.Quiet && c.Report.JSON:
		return errors.New("--quiet cannot be used with --json")
	case c.Report.Quiet && c.Profile.Endpoint == nil && c.Profile.Output == "":
		return errors.New("--quiet needs --output or --otlp-endpoint: there is nothing else but the tables")
	case group.Kind == report.GroupFunction && c.Sampling.NoSymbols:
		return errors.New("--group-by function needs the names of functions: leave out --no-symbols")
	}
	p.report = reportPlan{
		Tables: report.Tables{
			Group: group, Top: c.Report.Top, Wide: c.Report.Wide, NoFunctions: c.Sampling.NoSymbols,
			NoSpanNames: c.Sampling.Carrier == sampler.Labels.String(),
		},
		json: c.Report.JSON, quiet: c.Report.Quiet,
	}
	return nil
}

// kinds returns what the profile contains, first what viewers show first.
func (p *plan) kinds() (kinds []string) {
	if p.cpu != nil {
		kinds = append(kinds, profile.TypeCPU)
	}
	if p.alloc != nil && p.alloc.live {
		kinds = append(kinds, profile.TypeInuseSpace)
	}
	if p.alloc != nil {
		kinds = append(kinds, profile.TypeAllocSpace)
	}
	if p.wall != nil {
		kinds = append(kinds, profile.TypeWall)
	}
	return kinds
}
