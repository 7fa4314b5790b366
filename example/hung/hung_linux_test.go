// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package main

import (
	"bytes"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

const roleService = "hung"

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){roleService: func(*childproc.Parent) { main() }})
}

// TestHung checks that otelctx finds the three faults with one command each, and what a dump of all goroutines says.
func TestHung(t *testing.T) {
	childproc.NeedReading(t)
	exe := programs.Build(t, programs.Static, "../../cmd/otelctx", ".")
	service, err := childproc.Command(roleService)
	require.NoError(t, err)
	var dump bytes.Buffer
	service.Stderr = &dump
	stdin, err := service.StdinPipe()
	require.NoError(t, err)
	defer func() { _ = stdin.Close() }()
	require.NoError(t, service.Start())
	defer func() { _ = service.Process.Kill() }()
	pid := strconv.Itoa(service.Process.Pid)
	otelctx := func(args ...string) string {
		out, _ := exec.Command(exe, append(args, pid)...).CombinedOutput() // It fails until the service has published its spans.
		return string(out)
	}
	shows := func(args, want string) string {
		t.Helper()
		var out string
		require.Eventually(t, func() bool {
			out = otelctx(strings.Fields(args)...)
			return regexp.MustCompile(want).MatchString(out)
		}, testenv.Patience, 100*time.Millisecond, "%s", want)
		return out
	}
	builds := shows("spans --name build", `(?s)(.*sync\.Mutex\.Lock in \w+\.\(\*service\)\.build .*, with 2 others){3}`)
	peer := regexp.MustCompile(`IO wait on (127\.0\.0\.1:\d+) in \w+\.\(\*service\)\.build`).FindStringSubmatch(builds)
	require.NotEmpty(t, peer, builds)
	shows("spans --name order", `(?s)(.*waiting +select in \w+\.\(\*service\)\.order .*POST /order){3}`)
	shows("goroutines", `5  waiting: chan send\n.*\n    \w+\.check .*\n  created by \w+\.\(\*service\)\.health `)

	require.NoError(t, service.Process.Signal(syscall.SIGQUIT))
	require.Error(t, service.Wait())
	for _, want := range []string{`sync.Mutex.Lock`, `.(*service).build`, `IO wait`, `.(*service).order`, `chan send`, `hung.check`} {
		assert.Contains(t, dump.String(), want)
	}
	for _, unknown := range []string{peer[1], "POST /build", "with 2 others"} {
		assert.NotContains(t, dump.String(), unknown)
	}
}
