// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package main

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
)

const noAnswer = "reading timed out (its memory may be backed by userfaultfd or FUSE): no answer within 5s"

// TestNoAnswer checks that a process that blocks its readers does not prevent otelctx from reading other processes.
// The test runs all commands at the same time, because most of them wait for the timeout.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	before, stalling, behind := startPublisher(t, "checkout", "a"), startStalling(t), startPublisher(t, "cart", "b")
	pid := strconv.Itoa(stalling.PID())
	complaint := "otelctx: pid " + commOf(t, stalling) + ": " + noAnswer + "\n"
	lists := []*running{start(t, "list"), start(t, "list", "--json")}
	alone := []*running{start(t, "inspect", pid), start(t, "watch", pid)}

	t.Run("record", func(t *testing.T) {
		needSampling(t)
		c := startBusyService(t, nil, busyservice.Records, busyservice.ThreadSlots)
		all := start(t, "record", "--json", "--all", "--duration=0")
		// This recording selects the stalling process, which itself never touches the blocking memory.
		one := start(t, "record", "--json", pid, "--duration=100ms")
		all.awaitRecorded(t, c)
		require.Equal(t, "waits", stalling.Ask("%d", all.cmd.Process.Pid))
		c.Continue()
		busyservice.AwaitUse(t, c, 200*time.Millisecond)
		c.Stop()
		time.Sleep(200 * time.Millisecond) // Only scans that take more than 100 ms cause a warning.

		got := all.interrupt(t)
		d := decodeRecord(t, got)
		assert.Contains(t, got.stderr, "otelctx: pid "+commOf(t, stalling)+": reading timed out (its memory may be backed by userfaultfd or FUSE): no answer ")
		attributed := uint64(0)
		for _, p := range d.Processes {
			if p.PID == c.PID() {
				attributed = p.Attributed
			}
		}
		assert.Positive(t, attributed)

		got = one.wait(t)
		assert.Equal(t, exitNoAnswer, got.code)
		assert.Contains(t, got.stderr, noAnswer)
	})
	for _, r := range lists {
		got := r.wait(t)
		assert.Zero(t, got.code, r.cmd)
		for _, c := range []int{before.PID(), behind.PID()} {
			assert.Contains(t, got.stdout, strconv.Itoa(c), r.cmd)
		}
		assert.Contains(t, got.stderr, complaint, r.cmd)
	}
	for _, r := range alone {
		got := r.wait(t)
		assert.Equal(t, exitNoAnswer, got.code, r.cmd)
		assert.Empty(t, got.stdout, r.cmd)
		assert.Contains(t, got.stderr, noAnswer, r.cmd)
	}
}

// TestInterruptWithoutAnAnswer checks that otelctx watch, once interrupted, no longer waits for a process that
// blocks its readers.
func TestInterruptWithoutAnAnswer(t *testing.T) {
	c := startStalling(t)
	pid := strconv.Itoa(c.PID())
	interrupted := start(t, "watch", pid)
	require.Equal(t, "waits", c.Ask("%d", interrupted.cmd.Process.Pid))
	require.NoError(t, interrupted.cmd.Process.Signal(os.Interrupt))
	got := interrupted.wait(t)
	// If the command had waited for the timeout, it would have failed.
	assert.Zero(t, got.code)
	assert.Empty(t, got.stderr)
}
