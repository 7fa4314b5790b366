// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package boottime_test

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/otelctx/otelctx/internal/boottime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func now(t *testing.T) time.Duration {
	t.Helper()
	ns, err := boottime.Now()
	require.NoError(t, err)
	require.Positive(t, ns)
	return time.Duration(ns)
}

func TestNowIsMonotonic(t *testing.T) {
	last := now(t)
	for range 10_000 {
		next := now(t)
		require.GreaterOrEqual(t, next, last)
		last = next
	}
	const pause = 5 * time.Millisecond
	time.Sleep(pause)
	assert.GreaterOrEqual(t, now(t)-last, pause, "not in nanoseconds")
}

// uptime returns the kernel's time since boot, including suspension, with a resolution of 10 ms.
func uptime(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile("/proc/uptime")
	require.NoError(t, err)
	seconds, _, _ := strings.Cut(string(b), " ")
	s, err := strconv.ParseFloat(seconds, 64)
	require.NoError(t, err)
	return time.Duration(s * float64(time.Second))
}

func TestNowIsUptime(t *testing.T) {
	var fs syscall.Statfs_t
	require.NoError(t, syscall.Statfs("/proc/uptime", &fs))
	if fs.Type != 0x9fa0 { // PROC_SUPER_MAGIC
		t.Skip("/proc/uptime is not the kernel's: the container replaces it")
	}
	const tolerance = 20 * time.Millisecond // twice the resolution of /proc/uptime
	before := uptime(t)
	boot := now(t)
	assert.Greater(t, boot, before-tolerance)
	assert.Less(t, boot, uptime(t)+tolerance)
}

func TestNowAllocatesNothing(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = boottime.Now() }))
}
