// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/gob"
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
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/measured"
	"github.com/otelctx/otelctx/benchmarks/internal/stacknumber"
)

const (
	// frequency is the number of samples per second of CPU time. It is prime, so that samples do not
	// fall into step with regular events.
	frequency = 997
	// wanted is the number of samples of each pattern that an observer should take.
	wanted = 300
	// attempts is the maximum number of times that a pattern runs to get the wanted samples.
	attempts = 5
)

// board is the command scoreboard score: its flags, and the results for one publication.
type board struct {
	otelctx, otelcol, patterns, observers, resume string
	csv, publish                                  string
	cpu                                           time.Duration
	parallel                                      int
	together                                      bool

	// publication is the publication that is measured. rows holds its results by pattern, and costs
	// holds the costs of observers by name.
	publication publication
	rows        map[string]*row
	costs       map[string]*cost
}

// cost holds the resources that an observer has used since its start, and the CPU time that the
// service has used meanwhile.
type cost struct {
	Used, Service time.Duration // CPU time
	Memory        int64         // the peak, in bytes
}

// row holds the results of a pattern.
type row struct {
	pattern
	// Kinds is the set of values that due.kind has had in the pattern.
	Kinds map[string]bool
	// Tallies are keyed by observer.
	Tallies map[string]*tally
}

// tally counts samples by whether the observer was right about them.
type tally struct {
	Right, None, Wrong int
	// Shown counts the samples in Right that have a span. Outside counts the samples in Wrong that
	// must not have a span.
	Shown, Outside int
}

func (t *tally) samples() int { return t.Right + t.None + t.Wrong }

func (b *board) flags(f *flag.FlagSet) {
	f.StringVar(&b.otelctx, "otelctx", "otelctx", "path of otelctx")
	f.StringVar(&b.otelcol, "otelcol", "", "path of the Collector that make interop WHAT=otelcol builds; without it, its receivers are not observers")
	f.IntVar(&b.parallel, "parallel", 1, "how many repetitions of a pattern run at a time, if the pattern allows it")
	f.StringVar(&b.publish, "publish", "default", publishUsage+"; several separated by commas, or all")
	f.StringVar(&b.csv, "csv", "", "CSV file for the rows")
	f.BoolVar(&b.together, "together", false, "let all recorders look at the same process at the same time")
	f.StringVar(&b.patterns, "patterns", "", "names of patterns, separated by commas; the default is all")
	f.StringVar(&b.observers, "observers", "", "names of observers, separated by commas: record, labels, wall, receiver, upstream, cpu, goroutines; the default is all")
	f.StringVar(&b.resume, "resume", "", "file that keeps the counts, to continue later with the same code and the same -publish")
	f.DurationVar(&b.cpu, "cpu", 500*time.Millisecond, "minimum CPU time of each pattern")
}

// observer is a profiler that samples the service.
type observer struct {
	// name identifies the observer on the command line, and title in tables.
	name, title string
	// args holds additional arguments of otelctx record. It is nil for other observers.
	args []string
	// receiver is the name of a Collector receiver. It is empty for other observers.
	receiver string
	// serve holds additional arguments of the command scoreboard serve, which make the service profile
	// itself. It is nil for other observers.
	serve []string
	// profile is the name of the file that the observer writes. read decodes its content.
	profile string
	read    func(text []byte, pid int) (map[seen]int, error)
	// factor is how many times the usual CPU time the observer needs for the same number of
	// samples.
	factor int
	// waits says that the observer reports the kind of wait, and is measured only with patterns that
	// wait.
	waits bool
}

// judges reports whether an observer is measured with a pattern.
func (o *observer) judges(p *pattern) bool { return !o.waits || p.waits != "" }

func observers(collector bool) []observer {
	all := []observer{
		{name: "record", title: "`otelctx record`", args: []string{}, profile: "record.pb.gz", read: readProfile, factor: 1},
		{name: "labels", title: "`--carrier labels`", args: []string{"--carrier", "labels"}, profile: "record.pb.gz", read: readProfile, factor: 1},
		{name: "wall", title: "`record --wall`", args: []string{"--wall", "--freq", strconv.Itoa(wallFrequency)}, profile: "wall.pb.gz", read: readWall, factor: 1, waits: true},
	}
	if collector {
		all = append(all,
			observer{name: "receiver", title: "`otelctx` receiver", receiver: "otelctx", profile: "profiles.bin", read: readCollected, factor: 1},
			observer{name: "upstream", title: "eBPF profiler's receiver", receiver: "profiling", profile: "profiles.bin", read: readCollected, factor: 1},
		)
	}
	return append(all,
		// A CPU profile gets fewer samples than frequency asks for, because its timer fires at most
		// once per tick of the kernel's clock.
		observer{name: "cpu", title: "CPU profile", serve: []string{"-cpuprofile"}, profile: cpuProfileFile, read: readProfile, factor: 3},
		observer{
			name: "goroutines", title: "goroutine profile", serve: []string{"-goroutines"}, profile: goroutinesFile, factor: 1,
			read: func(b []byte, _ int) (map[seen]int, error) { return decode[map[seen]int](b) },
		},
	)
}

// chosen reports whether a name is in a list that is separated by commas. An empty list contains
// every name.
func chosen(list, name string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}

// score measures everything, prints tables and writes the CSV file.
func (b *board) score(stdout io.Writer) error {
	if err := b.mayRecord(); err != nil {
		return err
	}
	patterns := all()
	if b.patterns != "" {
		var err error
		if patterns, err = choose(b.patterns); err != nil {
			return err
		}
	}
	published := publications
	if b.publish != "all" {
		published = nil
		for name := range strings.SplitSeq(b.publish, ",") {
			p, err := publicationOf(name)
			if err != nil {
				return err
			}
			published = append(published, p)
		}
	}
	if b.resume != "" && len(published) > 1 {
		return errors.New("-resume keeps the counts of one publication: use one -publish")
	}
	_, _ = fmt.Fprintf(stdout, "%s, %s\n\n%s\n", time.Now().UTC().Format(time.DateOnly), measured.Machine(), libraries())
	var document csvDocument
	for _, p := range published {
		looked, err := b.measure(p, patterns)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(stdout, b.text(patterns, looked)); err != nil {
			return err
		}
		document.add(b, patterns, looked)
	}
	if b.csv == "" {
		return nil
	}
	return document.write(b)
}

// measure runs all patterns with one publication, and returns the observers that were measured.
func (b *board) measure(p publication, patterns []pattern) (looked []observer, err error) {
	b.publication, b.rows, b.costs = p, map[string]*row{}, map[string]*cost{}
	for _, p := range patterns {
		b.rows[p.name()] = &row{p, map[string]bool{}, map[string]*tally{}}
	}
	if err := b.load(); err != nil {
		return nil, err
	}
	var groups [][]observer
	for _, o := range observers(b.otelcol != "") {
		if !chosen(b.observers, o.name) || !p.seenBy(o) {
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
			return nil, err
		}
		for _, o := range group {
			_, _ = fmt.Fprintf(os.Stderr, "%s, %s: %v\n", p.name, o.name, time.Since(begin).Round(time.Second))
		}
	}
	return looked, nil
}

// exitNotPermitted is otelctx's exit code for a missing capability.
const exitNotPermitted = 4

var errNotPermitted = errors.New("recording requires root or the capabilities for BPF")

// mayRecord returns errNotPermitted, with otelctx's explanation, if this user may not record.
func (b *board) mayRecord() error {
	var stderr bytes.Buffer
	cmd := exec.Command(b.otelctx, "record", "--", "true")
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == exitNotPermitted {
		return fmt.Errorf("%w: %s", errNotPermitted, &stderr)
	}
	if err != nil {
		return fmt.Errorf("%s record: %w\n%s", b.otelctx, err, &stderr)
	}
	return nil
}

// outside reports whether an observer runs in its own process, and not in the service.
func (o *observer) outside() bool { return o.args != nil || o.receiver != "" }

// observe runs the patterns under a group of observers, which sample the same process, until every
// observer has enough samples of every pattern, but at most attempts times.
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
				enough = enough && (!o.judges(&p) || row.Tallies[o.name].samples() >= wanted)
			}
			switch {
			case enough:
			case p.alone:
				if err := b.observeOnce(group, p.name()); err != nil {
					return err
				}
			default:
				together = append(together, p.name())
			}
		}
		if len(together) > 0 {
			if err := b.observeOnce(group, strings.Join(together, ",")); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopFunc stops an observer, and returns its CPU time and memory.
type stopFunc func() (cost, error)

// interrupt ends an observer by a signal and returns its cost. It reads the peak memory from /proc
// before the signal. The maximum in the observer's resource usage would be wrong, because that
// includes the memory of this process, which forked it.
func interrupt(cmd *exec.Cmd, s os.Signal, wait func() error) (c cost, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		return c, err
	}
	_, peak, _ := bytes.Cut(status, []byte("\nVmHWM:"))
	_, err = fmt.Fscan(bytes.NewReader(peak), &c.Memory)
	c.Memory <<= 10
	err = errors.Join(err, cmd.Process.Signal(s), wait())
	if cmd.ProcessState != nil {
		c.Used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return c, err
}

// begin starts an observer of a process. The observer writes its file into dir, which begin creates.
func (b *board) begin(o observer, dir string, pid int) (stopFunc, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if o.receiver != "" {
		return b.collect(o, dir, pid)
	}
	return b.record(pid, append(o.args, "--output", filepath.Join(dir, o.profile)))
}

// observeOnce runs the patterns once, in a new process that the observers sample.
func (b *board) observeOnce(group []observer, patterns string) error {
	dir, err := os.MkdirTemp("", "scoreboard")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"serve", "-dir", dir, "-patterns", patterns, "-publish", b.publication.name, "-cpu", (b.cpu * time.Duration(group[0].factor)).String(), "-parallel", strconv.Itoa(b.parallel)}
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
	// Receivers are slow to start, so they start first.
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
	used := map[string]cost{}
	for name, end := range ends {
		c, err := end()
		used[name], failed = c, errors.Join(failed, err)
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
			b.charge(o, used[o.name], serve.ProcessState)
			path = filepath.Join(dir, o.name, o.profile)
		}
		if err := b.add(o, dir, path, serve.Process.Pid); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	return b.save()
}

// charge adds the resources that an observer used to its costs.
func (b *board) charge(o observer, used cost, service *os.ProcessState) {
	c := b.costs[o.name]
	if c == nil {
		c = new(cost)
		b.costs[o.name] = c
	}
	c.Used += used.Used
	c.Service += service.UserTime() + service.SystemTime()
	c.Memory = max(c.Memory, used.Memory)
}

// counted is the content of the file that the flag -resume names.
type counted struct {
	Rows  map[string]*row
	Costs map[string]*cost
}

// load continues with the counts in the file that the flag -resume names, if the file exists.
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

// save writes the counts to the file that the flag -resume names, if it is set.
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

// await reads lines until one equals want. It returns an error if there is none.
func await(lines *bufio.Scanner, want string) error {
	last := ""
	for lines.Scan() {
		if lines.Text() == want {
			return nil
		}
		last = lines.Text()
	}
	return fmt.Errorf("scoreboard serve has ended before it was %s; its last line: %q", want, last)
}

// record starts otelctx record, and returns once it is sampling or, with --wall, at once.
func (b *board) record(pid int, args []string) (stopFunc, error) {
	var stdout, stderr bytes.Buffer
	args = append([]string{"record", strconv.Itoa(pid), "--duration=0", "--json", "--top=1", "--freq", strconv.Itoa(frequency)}, args...)
	cmd := exec.Command(b.otelctx, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if slices.Contains(args, "--wall") {
		// With --wall, nothing shows from outside that the recorder is sampling. It does not matter,
		// because it starts early enough.
	} else if err := awaitSampling(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("%w: %s", err, &stderr)
	}
	return func() (cost, error) {
		used, err := interrupt(cmd, syscall.SIGINT, cmd.Wait)
		if err != nil {
			return cost{}, fmt.Errorf("%w: %s", err, &stderr)
		}
		var said struct {
			Samples, Lost int
			LeafOnly      int `json:"leaf_only"`
		}
		if err := json.Unmarshal(stdout.Bytes(), &said); err != nil {
			return cost{}, err
		}
		if said.Lost > 0 || said.LeafOnly > 0 {
			_, _ = fmt.Fprintf(os.Stderr, "of %d samples, %d were lost and %d have no stack\n", said.Samples, said.Lost, said.LeafOnly)
		}
		return used, nil
	}, nil
}

// awaitSampling waits until a recorder samples.
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
	return errors.New("the recorder does not start to sample")
}

// decode decodes a value that scoreboard serve has written.
func decode[T any](b []byte) (value T, err error) {
	err = gob.NewDecoder(bytes.NewReader(b)).Decode(&value)
	return value, err
}

// add adds the samples in an observer's file to the rows.
func (b *board) add(o observer, dir, path string, pid int) error {
	text, err := os.ReadFile(filepath.Join(dir, expectedFile))
	if err != nil {
		return err
	}
	expected, err := decode[[]due](text)
	if err != nil {
		return err
	}
	for _, t := range expected {
		b.rows[t.Pattern].Kinds[t.kind()] = true
	}
	if text, err = os.ReadFile(path); err != nil {
		return err
	}
	all, err := o.read(text, pid)
	if err != nil {
		return err
	}
	for s, times := range all {
		if s.Number >= uint64(len(expected)) {
			return fmt.Errorf("a stack has number %d, but only %d are known", s.Number, len(expected))
		}
		t := expected[s.Number]
		row := b.rows[t.Pattern]
		if !o.judges(&row.pattern) {
			continue
		}
		if s.Wait != "" && !chosen(row.waits, s.Wait) {
			t.Spans = [2]id{{trace.TraceID{1}, trace.SpanID{1}}} // no sample has this span, so none is right
		}
		row.Tallies[o.name].add(t, s.Given, times)
	}
	return nil
}

// add counts samples. given is the span that an observer attributed them to, or the zero id for no
// span.
func (t *tally) add(due due, given id, times int) {
	switch {
	case given == id{} && (due.Nothing || due.Spans[0] == id{}):
		t.Right += times
	case given == id{}:
		t.None += times
	case given == due.Spans[0], given == due.Spans[1]:
		t.Right += times
		t.Shown += times
	default:
		t.Wrong += times
		if (due.Spans[0] == id{}) {
			t.Outside += times
		}
	}
}

// readProfile counts the samples of a pprof profile by work number and attributed span.
func readProfile(b []byte, _ int) (map[seen]int, error) {
	all := map[seen]int{}
	return all, stacknumber.Read(b, func(number uint64, labels map[string][]string, count int) error {
		given, err := parseID(first(labels["trace_id"]), first(labels["span_id"]))
		all[seen{Number: number, Given: given}] += count
		return err
	})
}

// wallFrequency is the number of snapshots per second of record --wall.
const wallFrequency = 200

// readWall counts the samples of a profile of record --wall. The values in the profile are times. The first frame of
// a stack is the goroutine's state: [running], [runnable], [waiting: KIND] or [syscall].
func readWall(b []byte, _ int) (map[seen]int, error) {
	p, err := profile.ParseData(b)
	if err != nil {
		return nil, err
	}
	all := map[seen]int{}
	for _, sample := range p.Sample {
		var names []string
		for _, l := range sample.Location {
			for _, line := range l.Line {
				names = append(names, line.Function.Name)
			}
		}
		number, ok := stacknumber.Find(names)
		if !ok {
			continue
		}
		s := seen{Number: number}
		if doing := strings.TrimPrefix(strings.Trim(names[0], "[]"), "waiting: "); doing != "running" && doing != "runnable" {
			s.Wait = doing
		}
		if s.Given, err = parseID(first(sample.Label["trace_id"]), first(sample.Label["span_id"])); err != nil {
			return nil, err
		}
		all[s] += max(1, int(sample.Value[0]*wallFrequency/int64(time.Second)))
	}
	return all, nil
}

func first(s []string) string { return cmp.Or(append(s, "")...) }
