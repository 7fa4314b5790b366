// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

// TestWarnings expects one warning for each process and kind of error, even if a process varies the text.
func TestWarnings(t *testing.T) {
	var got []string
	w := newWarnings(func(err error) { got = append(got, err.Error()) })
	for round := range 3 {
		for pid := 1; pid <= 2; pid++ {
			w.warn(pid, fmt.Errorf("%d: %w: text %d", pid, reader.ErrInvalid, round))
			w.warn(pid, fmt.Errorf("%d: %w: text %d", pid, timelimit.ErrNoAnswer, round))
		}
		w.warn(0, reader.ErrBusy)
	}
	assert.Len(t, got, 5, "%q", got)
}

// TestQueue checks the order of scans. A waiting process is written as its user, name and recent CPU time.
// "+" adds a waiting process. "<" starts the scans whose turn it is and ends one of them.
func TestQueue(t *testing.T) {
	for name, test := range map[string]struct {
		places int
		steps  string
		want   string
	}{
		"the busiest of a user first":       {1, "+a1:1 +a2:3 +a3:2 <a2 <a3", "a2 a3 a1"},
		"the busiest of all users first":    {1, "+a1:0 +b1:0 +c1:9 +b2:1 <c1 <b2", "c1 b2 a1"},
		"users take turns":                  {1, "+a1:9 +a2:8 +a3:7 +b1:1 +b2:0 <a1 <b1 <a2 <b2", "a1 b1 a2 b2 a3"},
		"a crowd does not come before one":  {2, "+a1:5 +a2:5 +a3:5 +a4:5 +b1:1 <a1 <b1 <a2 <a3", "a1 b1 a2 a3 a4"},
		"a late user is not owed turns":     {1, "+a1:9 +a2:8 +a3:7 +a4:6 <a1 <a2 +b1:1 +b2:1 +b3:1 <a3 <b1 <a4 <b2", "a1 a2 a3 b1 a4 b2 b3"},
		"a user leaves places to others":    {4, "+a1:5 +a2:5 +a3:5 +a4:5 +b1:0", "a1 b1 a2"},
		"places that are given back, again": {4, "+a1:5 +a2:5 +a3:5 <a1", "a1 a2 a3"},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			q := newQueue(test.places, test.places)
			scans := map[string]*scan{}
			var got []string
			start := func() {
				for l := q.next(now); l != nil; l = q.next(now) {
					for name, one := range scans {
						if one == l {
							got = append(got, name)
						}
					}
				}
			}
			for i, step := range strings.Fields(test.steps) {
				of, recent, _ := strings.Cut(step[1:], ":")
				if step[0] == '<' {
					start()
					q.done(scans[of])
					continue
				}
				l := &scan{process: sampler.Process{Image: sampler.Image{PID: i + 1}}, user: int(of[0])}
				_, _ = fmt.Sscan(recent, &l.recent)
				scans[of] = l
				assert.True(t, q.add(l))
				assert.False(t, q.add(l), "already queued")
			}
			start()
			assert.Equal(t, test.want, strings.Join(got, " "))
		})
	}
}

// TestQueueUpdate checks that the CPU times of waiting processes are updated, and that ended processes are
// removed.
func TestQueueUpdate(t *testing.T) {
	now := time.Now()
	q := newQueue(1, 1)
	for pid, recent := range map[int]uint64{1: 30, 2: 20, 3: 10} {
		q.add(&scan{process: sampler.Process{Image: sampler.Image{PID: pid}}, recent: recent})
	}
	q.update(map[int]sampler.Process{1: {Image: sampler.Image{PID: 1}}, 3: {Image: sampler.Image{PID: 3}}},
		func(p sampler.Process) uint64 { return uint64(p.Image.PID) })
	l := q.next(now)
	assert.Equal(t, sampler.Image{PID: 3}, l.process.Image)
	assert.Nil(t, q.next(now), "the only place is taken")
	q.done(l)
	assert.Equal(t, 1, q.next(now).process.Image.PID)
	assert.False(t, q.has(2), "it has ended")
}

// TestQueueOfSlowScans checks that blocked scans do not prevent others.
func TestQueueOfSlowScans(t *testing.T) {
	now := time.Now()
	q := newQueue(4, 1)
	for pid := 1; pid <= 4; pid++ {
		q.add(&scan{process: sampler.Process{Image: sampler.Image{PID: pid}}})
	}
	assert.NotNil(t, q.next(now))
	assert.Nil(t, q.next(now.Add(quickScan-1)))
	assert.NotNil(t, q.next(now.Add(quickScan)))
	assert.Nil(t, q.next(now.Add(time.Hour)), "the other places are for other users")
}

// TestMakeRoom expects the program that has been idle the longest to be removed. If none is idle, the user
// with the most programs loses one to a user with at least two fewer.
func TestMakeRoom(t *testing.T) {
	r := newTargets(&Selection{})
	add := func(pid, user int, idle time.Duration) {
		r.add(&target{image: sampler.Image{PID: pid}, user: user, used: 7, active: time.Now().Add(-idle)})
	}
	add(1, 1, 0)
	add(2, 1, time.Hour)
	add(3, 1, 2*time.Hour)
	add(4, 1, 300*time.Millisecond)
	assert.Nil(t, r.makeRoom(1), "which are idle is not known before the processes are compared")
	r.changed(nil)
	add(5, 2, 3*time.Hour)
	r.programs[sampler.Image{PID: 5}].seen.Store(true) // sampled since
	for _, idle := range []int{3, 2} {
		assert.Equal(t, idle, r.makeRoom(1).image.PID)
		image := sampler.Image{PID: idle}
		assert.Nil(t, r.find(image))
		assert.False(t, r.hasChanged(sampler.Process{Image: image, Used: 7}))
		assert.True(t, r.hasChanged(sampler.Process{Image: image, Used: 8}))
		assert.False(t, r.hasChanged(sampler.Process{Image: image}), "it has ended, or is a kernel thread")
	}
	assert.Nil(t, r.makeRoom(1), "none is idle, and the user has the most")
	assert.Equal(t, 4, r.makeRoom(3).image.PID)
	assert.Nil(t, r.makeRoom(3), "one more would be as many")
}
