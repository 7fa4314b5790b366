// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/pprof/profile"
)

const (
	// frequency is how many samples are taken in a second of CPU time, no divisor of
	// anything.
	frequency = 997
	// wanted is how many samples a row has at least.
	wanted = 300
	// attempts is how often a pattern is run for that.
	attempts = 5
)

// board is wild score.
type board struct {
	otelctx, otelcol, output, patterns, observers, resume string
	table, csv, publish                                   string
	cpu                                                   time.Duration
	parallel                                              int
	together                                              bool

	// rows are by the names of patterns, costs by those of observers.
	rows  map[string]*row
	costs map[string]*cost
}

// cost is what an observer took, its start included, beside what the service used meanwhile.
type cost struct {
	Used, Service time.Duration // CPU time
	Memory        int64         // bytes, the most at a time
}

// row is the verdict on a pattern.
type row struct {
	pattern
	// Kinds are what the contract says: shown, nothing, either.
	Kinds map[string]bool
	// Tallies are by the names of observers.
	Tallies map[string]*tally
}

// tally counts samples.
type tally struct {
	Right, None, Wrong int
	// Shown are those of Right with a span, Outside those of Wrong where none is due.
	Shown, Outside int
}

func (t *tally) samples() int { return t.Right + t.None + t.Wrong }

func (b *board) flags(f *flag.FlagSet) {
	f.StringVar(&b.otelctx, "otelctx", "otelctx", "the command line tool")
	f.StringVar(&b.otelcol, "otelcol", "", "the Collector with the otelctx receiver, as make interop WHAT=otelcol builds it; none is no observers from there")
	f.IntVar(&b.parallel, "parallel", 1, "how many repetitions of a pattern run at a time, if it allows that")
	f.StringVar(&b.output, "o", "", "the document whose table to replace; none is standard output")
	f.StringVar(&b.publish, "publish", "default", publishUsage)
	f.StringVar(&b.csv, "csv", "", "the file for the rows of all patterns and observers; none is no file")
	f.StringVar(&b.table, "table", "wild", "which table of the document to replace")
	f.BoolVar(&b.together, "together", false, "have the recorders look at one process at a time, all of them")
	f.StringVar(&b.patterns, "patterns", "", "names of the patterns, by commas; none is all")
	f.StringVar(&b.observers, "observers", "", "names of the observers, by commas; none is all")
	f.StringVar(&b.resume, "resume", "", "a file to keep what was counted, to go on there another time with the same code")
	f.DurationVar(&b.cpu, "cpu", 500*time.Millisecond, "how much CPU time each pattern uses at least")
}

// observer is somebody who looks at the process.
type observer struct {
	// name is for the command line, title for the table.
	name, title string
	// args are those of otelctx record, nil for the profiles that the process takes itself.
	args []string
	// receiver is that of the Collector, empty for other observers.
	receiver string
	// serve are arguments of wild serve.
	serve []string
	// profile is the file with what was seen, and read reads it.
	profile string
	read    func(text []byte, pid int) (map[seen]int, error)
	// factor is how much more CPU time it takes for as many samples.
	factor int
}

func observers(carriers, collector bool) []observer {
	record := observer{name: "record", title: "`otelctx record`", args: []string{}, profile: "record.pb.gz", read: readProfile, factor: 1}
	labels := record
	labels.name, labels.title, labels.args = "labels", "`--carrier labels`", []string{"--carrier", "labels"}
	all := []observer{record}
	if carriers {
		all = append(all, labels)
	}
	if collector {
		all = append(all,
			observer{name: "receiver", title: "`otelctx` receiver", receiver: "otelctx", profile: "profiles.bin", read: readCollected, factor: 1},
			observer{name: "upstream", title: "eBPF profiler's receiver", receiver: "profiling", profile: "profiles.bin", read: readCollected, factor: 1},
		)
	}
	return append(all,
		// The kernel's timers of CPU time are as fast as its clock ticks.
		observer{name: "cpu", title: "CPU profile", serve: []string{"-cpuprofile"}, profile: cpuProfileFile, read: readProfile, factor: 3},
		observer{
			name: "goroutines", title: "goroutine profile", serve: []string{"-goroutines"}, profile: goroutinesFile, factor: 1,
			read: func(b []byte, _ int) (map[seen]int, error) { return readGoroutines(string(b)) },
		},
	)
}

// score measures everything and writes the table.
func (b *board) score(stdout io.Writer) error {
	if err := b.mayRecord(); err != nil {
		return err
	}
	s := server{patterns: b.patterns}
	patterns := all()
	if b.patterns != "" {
		var err error
		if patterns, err = s.choose(); err != nil {
			return err
		}
	}
	b.rows, b.costs = map[string]*row{}, map[string]*cost{}
	for _, p := range patterns {
		b.rows[p.name()] = &row{p, map[string]bool{}, map[string]*tally{}}
	}
	if err := b.load(); err != nil {
		return err
	}
	help, err := exec.Command(b.otelctx, "record", "--help").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s record --help: %w", b.otelctx, err)
	}
	var looked []observer
	var groups [][]observer
	for _, o := range observers(bytes.Contains(help, []byte("--carrier")), b.otelcol != "") {
		if b.observers != "" && !strings.Contains(","+b.observers+",", ","+o.name+",") {
			continue
		}
		looked = append(looked, o)
		if last := len(groups) - 1; b.together && o.outside() && last >= 0 && groups[last][0].outside() {
			groups[last] = append(groups[last], o)
		} else {
			groups = append(groups, []observer{o})
		}
	}
	for _, group := range groups {
		begin := time.Now()
		if err := b.observe(group, patterns); err != nil {
			return err
		}
		for _, o := range group {
			_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", o.name, time.Since(begin).Round(time.Second))
		}
	}
	if b.csv != "" {
		if err := b.writeCSV(patterns, looked); err != nil {
			return err
		}
	}
	return b.print(stdout, patterns, looked)
}

// exitNotPermitted is the exit code of otelctx that says that a capability is missing.
const exitNotPermitted = 4

// mayRecord returns why this user may not record.
func (b *board) mayRecord() error {
	var stderr bytes.Buffer
	cmd := exec.Command(b.otelctx, "record", "--", "true")
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == exitNotPermitted {
		return fmt.Errorf("recording takes root, or the capabilities for BPF: run make wild as root\n%s", &stderr)
	}
	if err != nil {
		return fmt.Errorf("%s record: %w\n%s", b.otelctx, err, &stderr)
	}
	return nil
}

// outside reports whether an observer is a process of its own.
func (o *observer) outside() bool { return o.args != nil || o.receiver != "" }

// observe has observers look at the patterns, at the same process, until each has enough samples
// of each.
func (b *board) observe(group []observer, patterns []pattern) error {
	for range attempts {
		var together []string
		for _, p := range patterns {
			row := b.rows[p.name()]
			enough := true
			for _, o := range group {
				if row.Tallies[o.name] == nil {
					row.Tallies[o.name] = new(tally)
				}
				enough = enough && row.Tallies[o.name].samples() >= wanted
			}
			switch {
			case enough:
			case p.alone:
				if err := b.look(group, p.name()); err != nil {
					return err
				}
			default:
				together = append(together, p.name())
			}
		}
		if len(together) > 0 {
			if err := b.look(group, strings.Join(together, ",")); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopFunc ends an observer.
type stopFunc func() (*os.ProcessState, error)

// begin starts an observer of a process, which writes into dir.
func (b *board) begin(o observer, dir string, pid int) (stopFunc, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if o.receiver != "" {
		return b.collect(o, dir, pid)
	}
	return b.record(pid, append(o.args, "--output", filepath.Join(dir, o.profile)))
}

// look runs patterns in one process, under the eyes of observers.
func (b *board) look(group []observer, patterns string) error {
	dir, err := os.MkdirTemp("", "wild")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"serve", "-dir", dir, "-patterns", patterns, "-publish", b.publish, "-cpu", (b.cpu * time.Duration(group[0].factor)).String(), "-parallel", strconv.Itoa(b.parallel)}
	serve := exec.Command(exe, append(args, group[0].serve...)...)
	serve.Stderr = os.Stderr
	if i := slices.IndexFunc(all(), func(p pattern) bool { return p.name() == patterns && p.env != "" }); i >= 0 {
		serve.Env = append(os.Environ(), all()[i].env)
	}
	in, err := serve.StdinPipe()
	if err != nil {
		return err
	}
	out, err := serve.StdoutPipe()
	if err != nil {
		return err
	}
	if err := serve.Start(); err != nil {
		return err
	}
	defer func() { _ = serve.Process.Kill() }()
	said := bufio.NewScanner(out)
	if err := await(said, "ready"); err != nil {
		return err
	}
	ends := map[string]stopFunc{}
	var failed error
	// A receiver takes its time: the one that begins first waits for the others.
	for _, o := range slices.Backward(group) {
		if failed != nil || !o.outside() {
			continue
		}
		end, err := b.begin(o, filepath.Join(dir, o.name), serve.Process.Pid)
		if err != nil {
			failed = fmt.Errorf("%s: %w", o.name, err)
			continue
		}
		ends[o.name] = end
	}
	if failed == nil {
		_, _ = io.WriteString(in, "go\n")
		failed = await(said, "done")
	}
	states := map[string]*os.ProcessState{}
	for name, end := range ends {
		state, err := end()
		states[name], failed = state, errors.Join(failed, err)
	}
	if failed != nil {
		return failed
	}
	if err := errors.Join(in.Close(), serve.Wait()); err != nil {
		return err
	}
	for _, o := range group {
		path := filepath.Join(dir, o.profile)
		if o.outside() {
			b.charge(o, states[o.name], serve.ProcessState)
			path = filepath.Join(dir, o.name, o.profile)
		}
		if err := b.add(o, dir, path, serve.Process.Pid); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	return b.save()
}

// charge adds to the costs what an observer has taken.
func (b *board) charge(o observer, took, service *os.ProcessState) {
	c := b.costs[o.name]
	if c == nil {
		c = new(cost)
		b.costs[o.name] = c
	}
	c.Used += took.UserTime() + took.SystemTime()
	c.Service += service.UserTime() + service.SystemTime()
	if usage, ok := took.SysUsage().(*syscall.Rusage); ok {
		c.Memory = max(c.Memory, usage.Maxrss<<10)
	}
}

// counted is what -resume keeps.
type counted struct {
	Rows  map[string]*row
	Costs map[string]*cost
}

// load reads what was counted before.
func (b *board) load() error {
	text, err := os.ReadFile(b.resume)
	if b.resume == "" || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	before := counted{Costs: b.costs}
	if err := json.Unmarshal(text, &before); err != nil {
		return fmt.Errorf("%s: %w", b.resume, err)
	}
	for name, r := range before.Rows {
		if b.rows[name] != nil {
			b.rows[name].Kinds, b.rows[name].Tallies = r.Kinds, r.Tallies
		}
	}
	return nil
}

// save keeps what was counted.
func (b *board) save() error {
	if b.resume == "" {
		return nil
	}
	text, err := json.Marshal(counted{b.rows, b.costs})
	if err != nil {
		return err
	}
	return os.WriteFile(b.resume, text, 0o600)
}

// await waits for a line.
func await(lines *bufio.Scanner, want string) error {
	last := ""
	for lines.Scan() {
		if lines.Text() == want {
			return nil
		}
		last = lines.Text()
	}
	return fmt.Errorf("wild serve has ended before it was %s; its last line: %q", want, last)
}

// record starts to record a process. What it returns ends that.
func (b *board) record(pid int, args []string) (stopFunc, error) {
	var stdout, stderr bytes.Buffer
	args = append([]string{"record", strconv.Itoa(pid), "--duration=0", "--json", "--top=1", "--freq", strconv.Itoa(frequency)}, args...)
	cmd := exec.Command(b.otelctx, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := awaitSampling(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("%w: %s", err, &stderr)
	}
	return func() (*os.ProcessState, error) {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGINT), cmd.Wait()); err != nil {
			return nil, fmt.Errorf("%w: %s", err, &stderr)
		}
		var said struct {
			Samples, Lost int
			LeafOnly      int `json:"leaf_only"`
		}
		if err := json.Unmarshal(stdout.Bytes(), &said); err != nil {
			return nil, err
		}
		if said.Lost > 0 || said.LeafOnly > 0 {
			_, _ = fmt.Fprintf(os.Stderr, "of %d samples %d were lost, and %d have no stack\n", said.Samples, said.Lost, said.LeafOnly)
		}
		return cmd.ProcessState, nil
	}, nil
}

// awaitSampling waits until a recorder has begun to sample.
func awaitSampling(pid int) error {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		fds, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, fd := range fds {
			if to, _ := os.Readlink(filepath.Join(dir, fd.Name())); to == "anon_inode:[perf_event]" {
				return nil
			}
		}
	}
	return errors.New("the recorder does not begin")
}

// add adds to the rows what an observer has seen, which is in the file at path.
func (b *board) add(o observer, dir, path string, pid int) error {
	f, err := os.Open(filepath.Join(dir, truthsFile))
	if err != nil {
		return err
	}
	truths, err := readTruths(f)
	_ = f.Close()
	if err != nil {
		return err
	}
	for _, t := range truths {
		b.rows[t.pattern].Kinds[t.kind()] = true
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	all, err := o.read(text, pid)
	if err != nil {
		return err
	}
	for s, times := range all {
		if s.number >= uint64(len(truths)) {
			return fmt.Errorf("a stack spells %d, of %d truths", s.number, len(truths))
		}
		t := truths[s.number]
		b.rows[t.pattern].Tallies[o.name].add(t, s.given, times)
	}
	return nil
}

// add adds samples of a truth for which an observer has given a span, or the zero id.
func (t *tally) add(due truth, given id, times int) {
	switch {
	case given == id{} && (due.nothing || due.spans[0] == id{}):
		t.Right += times
	case given == id{}:
		t.None += times
	case given == due.spans[0], given == due.spans[1]:
		t.Right += times
		t.Shown += times
	default:
		t.Wrong += times
		if (due.spans[0] == id{}) {
			t.Outside += times
		}
	}
}

// readProfile reads a pprof profile. Samples whose stack spells nothing are left out.
func readProfile(b []byte, _ int) (map[seen]int, error) {
	p, err := profile.Parse(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	all := map[seen]int{}
	for _, sample := range p.Sample {
		var names []string
		for _, l := range sample.Location {
			if len(l.Line) == 0 {
				names = append(names, "?")
			}
			for _, line := range l.Line {
				names = append(names, line.Function.Name)
			}
		}
		number, ok := told(names)
		if !ok {
			continue
		}
		given, err := parseID(first(sample.Label["trace_id"]), first(sample.Label["span_id"]))
		if err != nil {
			return nil, err
		}
		all[seen{number, given}] += int(sample.Value[0])
	}
	return all, nil
}

func first(s []string) string { return cmp.Or(append(s, "")...) }
