// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

var (
	rounds = flag.Int("rounds", testenv.Rounds(0, 1), "how many times to measure the throughput at each frequency")
	window = flag.Duration("window", 200*time.Millisecond, "how long to measure the throughput at a time")
	long   = flag.Duration("long", time.Duration(testenv.Rounds(0, 1))*time.Second, "how long the long recording is")
)

// use is what a service has done so far.
type use struct {
	requests  uint64
	cpu, wall time.Duration
}

func useOf(t *testing.T, c *childproc.Child) (u use) {
	t.Helper()
	_, err := fmt.Sscan(c.Ask("used"), &u.requests, (*int64)(&u.cpu), (*int64)(&u.wall))
	require.NoError(t, err)
	return u
}

// throughput is how many requests a service has answered in a second, and in a second of
// its processor time.
type throughput struct{ perSecond, perCPUSecond float64 }

// throughputOf measures a window, when another one has passed: what has begun or ended
// meanwhile is to be over.
func throughputOf(t *testing.T, c *childproc.Child) throughput {
	t.Helper()
	time.Sleep(*window)
	before := useOf(t, c)
	time.Sleep(*window)
	after := useOf(t, c)
	n := float64(after.requests - before.requests)
	return throughput{n / (after.wall - before.wall).Seconds(), n / (after.cpu - before.cpu).Seconds()}
}

// over returns how many times the mean of two windows another one is.
func (v throughput) over(a, b throughput) throughput {
	return throughput{2 * v.perSecond / (a.perSecond + b.perSecond), 2 * v.perCPUSecond / (a.perCPUSecond + b.perCPUSecond)}
}

// testOverhead prints what is left of a saturated HTTP service's throughput while it is
// recorded. Each window in which it is recorded is compared with the two around it, in
// which it is not. What the recorder takes to begin and to end is in none.
func (r recorder) testOverhead(t *testing.T) {
	if *rounds == 0 {
		t.Skip("nobody has asked for the costs")
	}
	child, _ := startWorkload(t, busiest, byDefault, filepath.Join(t.TempDir(), "spans"))
	pid := strconv.Itoa(child.PID())
	ratios := map[string][]throughput{}
	before := throughputOf(t, child)
	without := []throughput{before}
	for range *rounds {
		for _, f := range []int{99, frequency} {
			one := r.start(t, pid, fmt.Sprintf("--freq=%d", f), "--duration=0")
			one.sampling(t)
			with := throughputOf(t, child)
			one.interrupt(t)
			require.Positive(t, one.wait(t).Samples)
			after := throughputOf(t, child)
			name := fmt.Sprintf("%d Hz", f)
			ratios[name] = append(ratios[name], with.over(before, after))
			before = after
			without = append(without, after)
		}
	}
	for i := 1; i+1 < len(without); i++ {
		ratios["not recorded"] = append(ratios["not recorded"], without[i].over(without[i-1], without[i+1]))
	}
	var text strings.Builder
	text.WriteString("\n| recorded at | windows | requests a second, times | requests a CPU second, times |\n|---|--:|--:|--:|\n")
	for _, name := range []string{"not recorded", "99 Hz", fmt.Sprintf("%d Hz", frequency)} {
		var perSecond, perCPUSecond []float64
		for _, v := range ratios[name] {
			perSecond, perCPUSecond = append(perSecond, v.perSecond), append(perCPUSecond, v.perCPUSecond)
		}
		_, _ = fmt.Fprintf(&text, "| %s | %d | %s | %s |\n", name, len(perSecond), quartiles(perSecond), quartiles(perCPUSecond))
	}
	t.Log(text.String())
}

// quartiles returns the median for people, with the quartiles.
func quartiles(v []float64) string {
	if len(v) == 0 {
		return ""
	}
	slices.Sort(v)
	at := func(part float64) float64 { return v[int(part*float64(len(v)-1)+0.5)] }
	return fmt.Sprintf("%.4f (%.4f to %.4f)", at(0.5), at(0.25), at(0.75))
}

// testLong records two busy services for long. Each sample that the BPF program says it has
// taken must have been read, or be said to be lost. It prints what that takes, and fails if
// it is too much.
func (r recorder) testLong(t *testing.T) {
	for i := range 2 {
		startWorkload(t, busiest, byDefault, filepath.Join(t.TempDir(), strconv.Itoa(i)))
	}
	stats, err := ebpf.EnableStats(runTimeStats)
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("without CAP_SYS_ADMIN the kernel does not count what programs take: %v", err)
	}
	require.NoError(t, err)
	defer func() { _ = stats.Close() }()
	start := time.Now()
	one := r.start(t, "--all", fmt.Sprintf("--freq=%d", frequency), "--duration=0")
	program := one.program(t)
	counts := mapOf(t, program, "counted")
	time.Sleep(*long / 3)
	early := one.peak(t)
	time.Sleep(time.Until(start.Add(*long)))
	const enough = 100
	require.Eventually(t, func() bool {
		taken, _ := counted(t, counts)
		return taken > enough
	}, time.Minute, 10*time.Millisecond)
	late := one.peak(t)
	one.interrupt(t)
	got := one.wait(t)
	took := time.Since(start)
	after, err := program.Stats()
	require.NoError(t, err)

	// The program has ended; what it has counted is still there.
	taken, lost := counted(t, counts)
	perSample := after.Runtime / time.Duration(taken)
	share := func(d time.Duration) float64 { return 100 * d.Seconds() / took.Seconds() }
	t.Logf("%v at %d Hz: the program ran %d times and took %d samples; %d read, %d lost\n"+
		"the recorder's own processor time: %.2f %% of a core\n"+
		"the program's, which is that of whom it interrupts: %.2f %% of a core, %v for each sample; at 99 Hz %.4f %%\n"+
		"most memory: %d KiB after a third, %d KiB at the end",
		took.Round(time.Millisecond), frequency, after.RunCount, taken, got.Samples, got.Lost, share(got.used),
		share(after.Runtime), perSample, 100*perSample.Seconds()*99, early, late)
	assert.Equal(t, taken, got.Samples+got.Lost)
	assert.Equal(t, lost, got.Lost)
	assert.GreaterOrEqual(t, int(after.RunCount), taken)
	if *long >= 30*time.Second {
		assert.Less(t, perSample.Seconds()*99, 0.002)
		assert.Less(t, share(got.used+after.Runtime), 5.0)
		assert.Less(t, late, 2*early)
	}
}

// counted returns how many samples the program has taken, and how many of those were lost.
func counted(t *testing.T, counts *ebpf.Map) (taken, lost int) {
	t.Helper()
	var perCPU []struct{ Taken, Lost, Replaced uint64 }
	require.NoError(t, counts.Lookup(uint32(0), &perCPU))
	for _, c := range perCPU {
		taken += int(c.Taken)
		lost += int(c.Lost)
	}
	return taken, lost
}

// runTimeStats is BPF_STATS_RUN_TIME of bpf(2).
const runTimeStats = 0

// program returns the recorder's BPF program, once it samples.
func (r *recording) program(t *testing.T) *ebpf.Program {
	t.Helper()
	r.sampling(t)
	fd := r.descriptor(t, func(_, to string) bool { return to == "anon_inode:bpf-prog" })
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", r.pid(), fd))
	require.NoError(t, err)
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(field(t, info, "prog_id:")))
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// peak returns the most memory that the recorder has had so far, in KiB.
func (r *recording) peak(t *testing.T) uint64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid()))
	require.NoError(t, err)
	return field(t, status, "VmHWM:")
}

// field returns the number behind a name in a file of /proc.
func field(t *testing.T, content []byte, name string) uint64 {
	t.Helper()
	for line := range bytes.Lines(content) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			n, err := strconv.ParseUint(string(bytes.Fields(rest)[0]), 10, 64)
			require.NoError(t, err)
			return n
		}
	}
	require.FailNow(t, "no "+name, string(content))
	return 0
}

// mapOf returns the map of a program that has this name.
func mapOf(t *testing.T, program *ebpf.Program, name string) *ebpf.Map {
	t.Helper()
	info, err := program.Info()
	require.NoError(t, err)
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		require.NoError(t, err)
		if info, err := m.Info(); err == nil && info.Name == name {
			t.Cleanup(func() { _ = m.Close() })
			return m
		}
		require.NoError(t, m.Close())
	}
	require.FailNow(t, "no map "+name)
	return nil
}
