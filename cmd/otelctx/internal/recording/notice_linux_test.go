// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package recording

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/sampler"
	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// noticing returns targets that nobody polls after the first time.
func noticing(t *testing.T, s Selection) *targets {
	t.Helper()
	ts, err := openTargets(&Config{Selection: s, Sampler: sampler.Config{Frequency: 1}})
	if errors.Is(err, sampler.ErrNotPermitted) {
		t.Skip(err)
	}
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		ts.close()
	})
	if ts.changes == nil {
		t.Skip("the kernel tells no changes")
	}
	require.NoError(t, ts.start(ctx))
	ts.looks.Go(func() { ts.notice(ctx) })
	return ts
}

// state returns how many programs of a process are recorded, and how many were until they
// ended.
func (ts *targets) state(pid int) (recorded, gone int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for image, t := range ts.all {
		if _, is := ts.gone[t]; image.PID == pid && is {
			gone++
		} else if image.PID == pid {
			recorded++
		}
	}
	return recorded, gone
}

func (ts *targets) await(t *testing.T, pid, recorded, gone int) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, g := ts.state(pid)
		return r == recorded && g == gone
	}, time.Minute, time.Millisecond)
}

// A process is recorded from its exec on, and no longer when it ends, without a poll.
func TestNotice(t *testing.T) {
	ts := noticing(t, Selection{Names: []string{"sleep"}})
	cmd := exec.Command("sh", "-c", "echo ready; read line; exec sleep 1000")
	c := childproc.Run(t, cmd)
	c.Expect("ready")
	recorded, _ := ts.state(c.PID())
	assert.Zero(t, recorded)
	c.Send("go")
	ts.await(t, c.PID(), 1, 0)
	c.Kill()
	ts.await(t, c.PID(), 0, 1)
}

// Of one process the programs that it executes are recorded, and its end ends the recording.
func TestNoticeOfOne(t *testing.T) {
	c := childproc.Run(t, exec.Command("sh", "-c", "echo ready; read line; exec sleep 1000"))
	c.Expect("ready")
	ts := noticing(t, Selection{PIDs: []int{c.PID()}})
	ts.await(t, c.PID(), 1, 0)
	c.Send("go")
	ts.await(t, c.PID(), 2, 0) // The first one is found to be over by the next poll.
	assert.False(t, ts.hasEnded())
	c.Kill()
	select {
	case <-ts.ends:
	case <-time.After(time.Minute):
		t.Fatal("nobody is told")
	}
}

// A process that changes all the time is looked at six times in five seconds, and all together
// only so often.
func TestPacer(t *testing.T) {
	begin := time.Unix(1, 0)
	looks := func(processes int, d time.Duration) (n int) {
		p := &pacer{all: map[int]*noticed{}}
		for now := begin; now.Before(begin.Add(d)); now = now.Add(time.Millisecond) {
			for pid := range processes {
				p.change(sampler.Image{PID: pid}, now)
			}
			look, _, next := p.due(now)
			n += len(look)
			require.True(t, next.After(now))
			require.LessOrEqual(t, len(p.all), mostNoticed)
		}
		return n
	}
	assert.Equal(t, 6, looks(1, restTime))
	assert.Equal(t, 12, looks(1, 2*restTime))
	assert.LessOrEqual(t, looks(4000, 2*time.Second), 2*mostNotices)

	p := &pacer{all: map[int]*noticed{}}
	one := sampler.Image{PID: 1}
	require.True(t, p.change(one, begin))
	look, rested, next := p.due(begin)
	assert.Equal(t, []sampler.Image{one}, look)
	assert.Empty(t, rested)
	assert.Equal(t, begin.Add(firstPause), next)
	look, _, _ = p.due(begin.Add(firstPause - 1))
	assert.Empty(t, look)
	look, _, next = p.due(next)
	assert.Equal(t, []sampler.Image{one}, look)
	assert.Equal(t, begin.Add(3*firstPause), next)
	p.forget(1)
	look, _, _ = p.due(next)
	assert.Empty(t, look)
}
