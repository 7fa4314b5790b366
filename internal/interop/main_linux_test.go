// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// Roles of child processes.
const (
	roleObedient  = "obedient publisher"
	roleIncessant = "incessant publisher"
	roleReader    = "incessant reader"
)

func TestMain(m *testing.M) {
	roles := map[string]func(*childproc.Parent){
		roleObedient:  publishAsTold,
		roleIncessant: publishIncessantly,
		roleReader:    readIncessantly,
	}
	maps.Copy(roles, moreRoles)
	childproc.Main(m, roles)
}

// start starts a child that this process may read. Where the kernel forbids that it
// skips the test.
func start(t *testing.T, role string) *childproc.Child {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if !os.IsNotExist(err) {
		require.NoError(t, err)
		scope := strings.TrimSpace(string(b))
		if scope == "3" || scope == "2" && !hasPtraceCapability(t) {
			t.Skipf("kernel.yama.ptrace_scope is %s: not even parents may read their children without CAP_SYS_PTRACE, "+
				"and with 3 nobody may", scope)
		}
	}
	return childproc.Start(t, role, nil)
}

func hasPtraceCapability(t *testing.T) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(status), "\nCapEff:")
	require.True(t, ok)
	line, _, _ := strings.Cut(rest, "\n")
	caps, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	require.NoError(t, err)
	const capSysPtrace = 19
	return caps>>capSysPtrace&1 != 0
}
