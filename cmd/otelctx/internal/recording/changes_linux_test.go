// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package recording

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
)

// opened returns a search that has not been started.
func opened(t *testing.T, s Selection) *search {
	t.Helper()
	w, err := newSearch(&Config{Selection: s, Sampler: sampler.Config{Frequency: 1}}, newWarnings(nil))
	if errors.Is(err, sampler.ErrNotPermitted) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return w
}

// startFor starts a search until the end of the test.
func (w *search) startFor(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		w.close()
	})
	require.NoError(t, w.start(ctx, firstScanWait))
	return ctx
}

// noticing returns a started search that polls only once.
func noticing(t *testing.T, s Selection) *search {
	t.Helper()
	w := opened(t, s)
	ctx := w.startFor(t)
	if w.changes == nil {
		t.Skip("the kernel cannot report changes")
	}
	w.working.Go(func() { w.followChanges(ctx) })
	return w
}

// startShell starts a shell that executes sleep when it is sent a line.
func startShell(t *testing.T) *childproc.Child {
	t.Helper()
	c := childproc.Run(t, exec.Command("sh", "-c", "echo ready; read line; exec sleep 1000"))
	c.Expect("ready")
	return c
}

// state returns how many programs of a process are being recorded, and how many are no longer recorded.
func (w *search) state(pid int) (recorded, gone int) {
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	for image, t := range w.targets.programs {
		if image.PID == pid && !t.retired.IsZero() {
			gone++
		} else if image.PID == pid {
			recorded++
		}
	}
	return recorded, gone
}

func (w *search) await(t *testing.T, pid, recorded, gone int) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, g := w.state(pid)
		return r == recorded && g == gone
	}, testenv.Patience, time.Millisecond)
}

// retry repeats an attempt until it succeeds. An attempt may fail, because the search leaves some changes to
// the poll, which these tests do not run, if many processes change or one process changes often.
func retry(t *testing.T, attempt func() bool) {
	t.Helper()
	for range 30 {
		if attempt() {
			return
		}
	}
	t.Fatal("nothing is noticed")
}

// soon reports whether state returns the given numbers within two seconds.
func (w *search) soon(pid, recorded, gone int) bool {
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if r, g := w.state(pid); r == recorded && g == gone {
			return true
		}
	}
	return false
}

// TestNotice checks that a process is recorded from its exec to its end, even without the poll.
func TestNotice(t *testing.T) {
	w := noticing(t, Selection{Names: []string{"sleep"}})
	retry(t, func() bool {
		c := startShell(t)
		recorded, _ := w.state(c.PID())
		assert.Zero(t, recorded)
		c.Send("go")
		if !w.soon(c.PID(), 1, 0) {
			return false
		}
		// A scan of the shell while it executes sleep records the shell's image, which only the poll retires.
		image, err := w.sampler.Image(c.PID())
		require.NoError(t, err)
		if w.targets.find(image) == nil {
			return false
		}
		c.Kill()
		w.await(t, c.PID(), 0, 1)
		return true
	})
}

// TestNoticeOfOne checks that the programs that a selected process executes are recorded, and that its end is
// noticed.
func TestNoticeOfOne(t *testing.T) {
	retry(t, func() bool {
		c := startShell(t)
		w := noticing(t, Selection{PIDs: []int{c.PID()}})
		w.await(t, c.PID(), 1, 0)
		c.Send("go")
		if !w.soon(c.PID(), 2, 0) { // The next poll notices that the first program has ended.
			return false
		}
		assert.False(t, w.hasEnded())
		c.Kill()
		select {
		case <-w.exits:
		case <-time.After(testenv.Patience):
			t.Fatal("nobody is told")
		}
		return true
	})
}

// TestReplacedIsNotEnded checks that a process that executes a program during a scan does not count as
// ended.
func TestReplacedIsNotEnded(t *testing.T) {
	c := startShell(t)
	w := opened(t, Selection{PIDs: []int{c.PID()}})
	defer w.close()
	process, err := watchExit(c.PID())
	require.NoError(t, err)
	w.selectedExits[c.PID()] = process
	shell, err := w.sampler.Image(c.PID())
	require.NoError(t, err)
	c.Send("go")
	image := func() sampler.Image {
		now, err := w.sampler.Image(c.PID())
		require.NoError(t, err)
		return now
	}
	require.Eventually(t, func() bool { return image() != shell }, testenv.Patience, time.Millisecond)
	require.NoError(t, w.scan(t.Context(), sampler.Process{Image: shell}, 0, func() {}))
	require.ErrorIs(t, w.checkImage(shell), errReplaced)
	assert.False(t, w.hasEnded())
	assert.NotEmpty(t, w.targets.changed(map[int]sampler.Process{c.PID(): {Image: image()}}), "it is scanned again")
	c.Kill()
	assert.True(t, w.hasEnded())
}

// TestExecutesAllTheTime checks that the first scan of a process succeeds even if the process executes programs
// all the time.
func TestExecutesAllTheTime(t *testing.T) {
	c := childproc.Run(t, exec.Command(programs.Script(t, `exec "$0"`)))
	w := opened(t, Selection{PIDs: []int{c.PID()}})
	defer w.close()
	replaced := 0
	for end := time.Now().Add(testenv.Patience); replaced < 10 && time.Now().Before(end); {
		image, err := w.sampler.Image(c.PID())
		require.NoError(t, err)
		if err := w.checkImage(image); err != nil {
			require.ErrorIs(t, err, errReplaced)
			replaced++
		}
		_, err = w.scanFirst(t.Context(), c.PID())
		require.NoError(t, err)
		for _, program := range w.targets.clear() { // Each has open files.
			program.release()
		}
	}
	assert.Positive(t, replaced)
}

// TestUnlisted checks that an existing process is not reported as ended if the kernel does not list it.
func TestUnlisted(t *testing.T) {
	c := startShell(t)
	w := opened(t, Selection{PIDs: []int{c.PID()}})
	defer w.close()
	err := w.unlisted(t.Context(), c.PID(), reader.ErrProcessGone)
	require.ErrorContains(t, err, "does not list it")
	require.NotErrorIs(t, err, reader.ErrProcessGone)
	c.Kill()
	require.ErrorIs(t, w.unlisted(t.Context(), c.PID(), reader.ErrProcessGone), reader.ErrProcessGone)
	assert.ErrorIs(t, w.unlisted(t.Context(), c.PID(), os.ErrClosed), os.ErrClosed)
}

// TestPollAlone checks that the poll detects starts and ends without the reports of the kernel.
func TestPollAlone(t *testing.T) {
	w := opened(t, Selection{Names: []string{"sleep"}})
	if w.changes != nil {
		require.NoError(t, w.changes.Close())
		w.changes = nil
	}
	ctx := w.startFor(t)
	w.followChanges(ctx) // returns at once
	c := startShell(t)
	c.Send("go")
	poll := func(reached func() bool) {
		require.Eventually(t, func() bool {
			w.poll(ctx)
			return reached()
		}, testenv.Patience, time.Millisecond)
	}
	// A scan of the shell while it executes sleep may have recorded the shell's image, which the next poll retires.
	poll(func() bool {
		image, err := w.sampler.Image(c.PID())
		require.NoError(t, err)
		recorded, _ := w.state(c.PID())
		return recorded == 1 && w.targets.find(image) != nil
	})
	c.Kill()
	poll(func() bool {
		recorded, gone := w.state(c.PID())
		return recorded == 0 && gone > 0
	})
}

// TestPacer checks that a process that changes all the time is scanned six times in five seconds, that the
// scans of all processes are bounded, and that a process for which there is no room is rearmed at most once
// a second.
func TestPacer(t *testing.T) {
	begin := time.Unix(1, 0)
	countScans := func(processes int, d time.Duration) (n, told int) {
		// The kernel reports a process once until it is rearmed.
		silent := map[int]bool{}
		p := newPacer(func(pid int) { delete(silent, pid) })
		for now := begin; now.Before(begin.Add(d)); now = now.Add(time.Millisecond) {
			for pid := range processes {
				if !silent[pid] {
					silent[pid] = true
					told++
					p.change(sampler.Image{PID: pid}, now)
				}
			}
			due, next := p.due(now)
			n += len(due)
			require.True(t, next.After(now))
			require.LessOrEqual(t, len(p.all), maxChanged)
		}
		return n, told
	}
	n, told := countScans(1, suspendTime)
	assert.Equal(t, 6, n)
	assert.Equal(t, 7, told)
	n, _ = countScans(1, 2*suspendTime)
	assert.Equal(t, 12, n)
	n, told = countScans(4000, 2*time.Second)
	assert.LessOrEqual(t, n, 2*maxChangeScans)
	assert.LessOrEqual(t, told, 3*4000+n)

	p := newPacer(func(int) {})
	one := sampler.Image{PID: 1}
	p.change(one, begin)
	due, next := p.due(begin)
	assert.Equal(t, []sampler.Image{one}, due)
	assert.Equal(t, begin.Add(firstDelay), next)
	due, _ = p.due(begin.Add(firstDelay - 1))
	assert.Empty(t, due)
	due, next = p.due(next)
	assert.Equal(t, []sampler.Image{one}, due)
	assert.Equal(t, begin.Add(3*firstDelay), next)
	p.end(1)
	due, _ = p.due(next)
	assert.Empty(t, due)
}

// TestPacerOfTwoPrograms checks that the next program of a process stays scheduled even if the previous program
// ended before its scan.
func TestPacerOfTwoPrograms(t *testing.T) {
	w := opened(t, Selection{})
	t.Cleanup(w.close)
	second, err := w.sampler.Image(os.Getpid())
	require.NoError(t, err)
	first := sampler.Image{PID: second.PID}
	now := time.Unix(1, 0)
	p := newPacer(func(int) {})
	p.change(first, now)
	due, next := p.due(now)
	assert.Equal(t, []sampler.Image{first}, due)
	p.change(second, now)
	p.gone(first)
	due, next = p.due(next)
	assert.Equal(t, []sampler.Image{second}, due)
	p.gone(second)
	due, _ = p.due(next)
	assert.Empty(t, due)
}

// TestPacerForgetsAll checks that the kernel's table of reported processes, which has room for a few
// thousand, is empty in the end, however processes change and end.
func TestPacerForgetsAll(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(1, 0)
	told, lives := map[int]bool{}, map[int]bool{}
	p := newPacer(func(pid int) { delete(told, pid) })
	step := func() {
		now = now.Add(time.Duration(random.IntN(30)) * time.Millisecond)
		due, _ := p.due(now)
		for _, image := range due {
			if !lives[image.PID] {
				p.gone(image)
			}
		}
	}
	most := 0
	for range 20_000 {
		pid := random.IntN(2 * maxChanged)
		switch {
		case random.IntN(4) > 0:
			lives[pid] = true
			if !told[pid] {
				told[pid] = true
				p.change(sampler.Image{PID: pid}, now)
			}
		case lives[pid]:
			delete(lives, pid)
			if pid%2 == 0 { // The sampler watches this process.
				p.end(pid)
			}
		}
		most = max(most, len(told))
		if random.IntN(20) == 0 {
			step()
		}
	}
	assert.Greater(t, most, maxChanged)
	clear(lives)
	for end := now.Add(3 * suspendTime); now.Before(end); {
		step()
	}
	assert.Empty(t, told)
	assert.Empty(t, p.all)
	assert.Empty(t, p.overflow)
}
