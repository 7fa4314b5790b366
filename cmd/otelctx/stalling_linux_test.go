// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const noAnswer = "the process makes those who read it wait: no answer within 5s"

// A process that makes readers wait keeps none from the others.
func TestListGoesOnWithoutAnAnswer(t *testing.T) {
	before, stalling, behind := startPublisher(t, "checkout", "a"), startStalling(t), startPublisher(t, "cart", "b")
	for _, args := range [][]string{{"list"}, {"list", "--json"}} {
		got := otelctx(t, args...)
		assert.Zero(t, got.code, args)
		for _, c := range []int{before.PID(), behind.PID()} {
			assert.Contains(t, got.stdout, strconv.Itoa(c), args)
		}
		assert.Contains(t, got.stderr, "otelctx: pid "+strconv.Itoa(stalling.PID())+": "+noAnswer+"\n", args)
	}
}

func TestExitNoAnswer(t *testing.T) {
	pid := strconv.Itoa(startStalling(t).PID())
	for _, command := range []string{"inspect", "watch"} {
		got := otelctx(t, command, pid)
		assert.Equal(t, exitNoAnswer, got.code, command)
		assert.Empty(t, got.stdout, command)
		assert.Contains(t, got.stderr, noAnswer, command)
	}
}

// Who interrupts does not wait for what the process makes wait.
func TestInterruptWithoutAnAnswer(t *testing.T) {
	pid := strconv.Itoa(startStalling(t).PID())
	cmd := exec.Command(executable(t), "watch", pid)
	cmd.Env = append(os.Environ(), asCommandKey+"=1", "GORACE=atexit_sleep_ms=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	awaitOpen(t, cmd, "/proc/"+pid)
	time.Sleep(time.Second) // It has begun to wait. Uninterrupted it would say that there is no answer.
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
	assert.Empty(t, stderr.String())
}
