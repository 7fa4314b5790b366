// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
)

var (
	measure = flag.Bool("measure", false, "run the measurements, which are skipped otherwise")
	rounds  = flag.Int("rounds", 5, "how many times to measure; the median counts")
	window  = flag.Duration("window", 30*time.Second, "how long each measurement takes")
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){busyservice.Role: busyservice.Run, waitingRole: serveWaiting, allocatingRole: serveAllocating})
}

// need skips a test unless -measure is set.
func need(t *testing.T) {
	t.Helper()
	if !*measure {
		t.Skip("this measurement needs -measure")
	}
}

// startService starts a service that is always busy, with new spans and varied stacks.
func startService(t *testing.T) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, busyservice.Role, nil)
	require.Equal(t, "burning", c.Ask("%s", busyservice.Words(busyservice.Records, busyservice.ThreadSlots)))
	return c
}

// tool is a running recorder: otelctx or perf.
type tool struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

func start(t *testing.T, name string, args ...string) *tool {
	t.Helper()
	r := &tool{t: t, cmd: exec.Command(name, args...)}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	require.NoError(t, r.cmd.Start())
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
	return r
}

func (r *tool) PID() int { return r.cmd.Process.Pid }

// used returns the CPU time used so far.
func (r *tool) used() time.Duration {
	r.t.Helper()
	used, err := busyservice.Used(r)
	require.NoError(r.t, err)
	return used
}

// end interrupts the tool, waits for it, and returns the CPU time used in total.
func (r *tool) end() time.Duration {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(os.Interrupt))
	err := r.cmd.Wait()
	if filepath.Base(r.cmd.Path) != "perf" { // The interrupt kills perf, so perf never exits successfully.
		require.NoError(r.t, err, r.stderr.String())
	}
	return r.cmd.ProcessState.UserTime() + r.cmd.ProcessState.SystemTime()
}

func otelctx(t *testing.T, exe string, args ...string) *tool {
	t.Helper()
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	return start(t, exe, append([]string{"record", "--json", "--top=1", "--duration=0", "-o", file}, args...)...)
}

func build(t *testing.T) string {
	t.Helper()
	return programs.Build(t, programs.Static, "../../cmd/otelctx", ".")
}

// samples returns the number of samples. The recording must have ended.
func (r *tool) samples() int {
	r.t.Helper()
	var document struct{ Samples, Lost int }
	require.NoError(r.t, json.Unmarshal(r.stdout.Bytes(), &document))
	assert.Zero(r.t, document.Lost)
	return document.Samples
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// beginning is enough time for a recorder to examine all processes for the first time.
const beginning = 4 * time.Second

// TestIdle measures the recorder's CPU time while there are 560 idle processes, and a service that
// is busy or stopped.
func TestIdle(t *testing.T) {
	need(t)
	exe := build(t)
	for range 560 {
		start(t, "sleep", "infinity")
	}
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("busy=%v", busy), func(t *testing.T) {
			service := startService(t)
			var shares []float64
			for range *rounds {
				r := otelctx(t, exe, "--all")
				time.Sleep(beginning)
				if !busy {
					signal(t, service, "STOP")
					time.Sleep(beginning)
				}
				before, began := r.used(), time.Now()
				time.Sleep(*window)
				shares = append(shares, 100*(r.used()-before).Seconds()/time.Since(began).Seconds())
				signal(t, service, "CONT")
				r.end()
			}
			t.Logf("%% of a core: %.3f, median %.3f", shares, median(shares))
		})
	}
}

func signal(t *testing.T, c *childproc.Child, name string) {
	t.Helper()
	require.NoError(t, exec.Command("kill", "-"+name, strconv.Itoa(c.PID())).Run())
}

// web is an HTTP service that is always busy.
type web struct {
	pid int
	// answered counts the requests that it has answered.
	answered atomic.Uint64
}

func (w *web) PID() int { return w.pid }

func startHTTP(t *testing.T) *web {
	t.Helper()
	cmd := exec.Command(programs.Build(t, programs.Static, "../../example", "./quickstart"), "-serve")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	w := new(web)
	var url string
	_, err = fmt.Fscanf(bufio.NewReader(stdout), "pid=%d\nurl=%s\n", &w.pid, &url)
	require.NoError(t, err)
	const clients = 4
	for range clients {
		go func() {
			for {
				response, err := http.Get(url)
				if err != nil {
					return // the service has ended
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				w.answered.Add(1)
			}
		}()
	}
	return w
}

// TestOverhead measures how many requests an HTTP service answers per second of its CPU time while it
// is recorded, compared with the time before and after the recording. The results for 0 Hz are without
// a recorder, so their spread is the measurement error.
func TestOverhead(t *testing.T) {
	need(t)
	exe, service := build(t), startHTTP(t)
	throughput := func() float64 {
		time.Sleep(beginning)
		used, err := busyservice.Used(service)
		require.NoError(t, err)
		answered := service.answered.Load()
		time.Sleep(*window)
		usedAfter, err := busyservice.Used(service)
		require.NoError(t, err)
		return float64(service.answered.Load()-answered) / (usedAfter - used).Seconds()
	}
	ratios := map[string][]float64{}
	before := throughput()
	for range *rounds {
		for _, frequency := range []string{"0", "99", "997"} {
			var r *tool
			if frequency != "0" {
				r = otelctx(t, exe, strconv.Itoa(service.pid), "--freq="+frequency)
			}
			recorded := throughput()
			if r != nil {
				r.end()
				require.Positive(t, r.samples())
			}
			after := throughput()
			ratios[frequency] = append(ratios[frequency], 2*recorded/(before+after))
			before = after
		}
	}
	for frequency, v := range ratios {
		t.Logf("%s Hz: requests per CPU second, compared with no recording: %.4f, median %.4f", frequency, v, median(v))
	}
}

// cost is the CPU time of a recording, and its number of samples.
type cost struct {
	// steady is the tool's CPU time in an interval of the length -window, after it has settled.
	// all is its CPU time from start to end.
	steady, all time.Duration
	// named and written are set only for perf. named is the CPU time of perf record from start to
	// end plus that of a perf script that prints the samples with function names. written is the
	// same without names.
	named, written time.Duration
	samples        int
}

// TestBesidePerf compares otelctx record, with and without function names, with perf record.
func TestBesidePerf(t *testing.T) {
	need(t)
	if _, err := exec.LookPath("perf"); err != nil {
		t.Skipf("no perf: %v", err)
	}
	exe := build(t)
	for _, s := range []struct {
		name  string
		start func(*testing.T) int
	}{{"http", func(t *testing.T) int { return startHTTP(t).pid }}, {"busyservice", func(t *testing.T) int { return startService(t).PID() }}} {
		t.Run("service="+s.name, func(t *testing.T) {
			pid := strconv.Itoa(s.start(t))
			for _, frequency := range []string{"99", "997"} {
				t.Run("freq="+frequency, func(t *testing.T) { besidePerf(t, exe, pid, frequency) })
			}
		})
	}
}

func besidePerf(t *testing.T, exe, pid, frequency string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "perf.data")
	var ours, unnamed, theirs []cost
	var steady, all, written, named []float64
	for range *rounds {
		r := otelctx(t, exe, pid, "--freq="+frequency)
		o := r.record()
		o.samples = r.samples()
		r = otelctx(t, exe, pid, "--freq="+frequency, "--no-symbols")
		u := r.record()
		u.samples = r.samples()
		r = start(t, "perf", "record", "-e", "cpu-clock", "-g", "-F", frequency, "-p", pid, "-o", file)
		p := r.record()
		var used time.Duration
		p.samples, used = perfScript(t, file, "comm,tid,time,ip,sym,dso")
		p.named = p.all + used
		_, used = perfScript(t, file, "comm,tid,time,ip")
		p.written = p.all + used
		ours, unnamed, theirs = append(ours, o), append(unnamed, u), append(theirs, p)
		steady = append(steady, perSample(u.steady, u)/perSample(p.steady, p))
		all = append(all, perSample(u.all, u)/perSample(p.all, p))
		written = append(written, perSample(u.all, u)/perSample(p.written, p))
		named = append(named, perSample(o.all, o)/perSample(p.named, p))
	}
	for i := range ours {
		t.Logf("otelctx %+v, unnamed %+v; perf %+v", ours[i], unnamed[i], theirs[i])
	}
	t.Logf("CPU time per sample as a multiple of perf's: steady, without names %.2f (%.2f); whole recording, without names %.2f (%.2f), with perf script %.2f (%.2f); with names and perf script %.2f (%.2f)",
		median(steady), steady, median(all), all, median(written), written, median(named), named)
}

// perfScript runs perf script on a file. It returns the number of samples that perf script prints, and
// the CPU time that perf script uses.
func perfScript(t *testing.T, file, fields string) (samples int, used time.Duration) {
	t.Helper()
	script := exec.Command("perf", "script", "--no-inline", "-F", fields, "-i", file)
	out, err := script.Output()
	require.NoError(t, err)
	return strings.Count(string(out), "\n\n"), script.ProcessState.UserTime() + script.ProcessState.SystemTime()
}

// perSample returns CPU time in seconds per sample.
func perSample(used time.Duration, c cost) float64 { return used.Seconds() / float64(c.samples) }

// record waits until the tool has settled, lets it record for the length of -window, and ends it. It
// does not set cost.samples.
func (r *tool) record() (c cost) {
	r.t.Helper()
	time.Sleep(beginning)
	before := r.used()
	time.Sleep(*window)
	c.steady = r.used() - before
	c.all = r.end()
	return c
}
