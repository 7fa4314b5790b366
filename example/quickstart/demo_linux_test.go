// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	otelctx := buildOtelctx(t)
	for name, as := range map[string]func(*testing.T, *exec.Cmd){
		"this user": func(t *testing.T, cmd *exec.Cmd) {
			t.Helper()
			cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir())
		},
		"an ordinary user": func(t *testing.T, cmd *exec.Cmd) {
			t.Helper()
			if os.Geteuid() != 0 {
				t.Skip("the tests already run as an ordinary user")
			}
			by(t, cmd, nobody)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := quickstart(t, "-otelctx", otelctx, "-duration", "1500ms")
			as(t, cmd)
			out, code := runToEnd(t, cmd)
			require.Zero(t, code, out)
			assert.Contains(t, out, "has answered 50 requests")
			assert.Regexp(t, `\$ otelctx spans \d+\nProcess \d+ \(quickstart\): live spans: [1-9]\d*\n  AGE .*\n(.*\n)*?.* GET /work `, out)
			assertRecorded(t, out)
			assert.Regexp(t, `\$ otelctx spans \d+ --min-age 2s\nProcess \d+ \(quickstart\): live spans: \d+\n(.*\n)*?`+
				`  \d+s +waiting +select on 127\.0\.0\.1:\d+ in \w+\.\(\*cart\)\.pay \(handler\.go:\d+\) +GET /checkout +GET /checkout `, out)
			assert.Regexp(t, `(?m)^  \d+s +waiting +sync\.Mutex\.Lock in \w+\.\(\*cart\)\.show \(handler\.go:\d+\) +GET /cart +GET /cart `, out)
			if runtime.GOARCH == "amd64" && !testenv.Race { // The race detector's code does not show who holds a lock.
				assert.Regexp(t, `(?m)^ +held up by\? goroutine \d+ "HTTP POST" of "GET /checkout", which waits for 127\.0\.0\.1:\d+ in \w+\.\(\*cart\)\.pay `, out)
			}
			assert.Regexp(t, `(?m)^    \w+\.\(\*cart\)\.checkout +handler\.go:\d+$`, out)
			assert.NotContains(t, out, "/pkg/mod/")
			assert.Contains(t, out, "The service ends.")
			assertNoService(t, out)
		})
	}
}

// assertRecorded checks that the demo has recorded the service, or has explained why it may not.
func assertRecorded(t *testing.T, out string) {
	t.Helper()
	assert.Contains(t, out, "\n$ otelctx record ")
	if strings.Contains(out, "Sampling is not permitted here") {
		assert.Contains(t, out, "not permitted to sample")
		assert.Contains(t, out, "CAP_PERFMON")
		return
	}
	assert.Contains(t, out, "\nTop spans by CPU time\n")
	file := regexp.MustCompile(`go tool pprof -http=localhost:0 (\S+)`).FindStringSubmatch(out)
	if assert.NotNil(t, file) {
		assert.FileExists(t, file[1])
	}
}

// TestDemoRecordingNotPermitted checks that the demo succeeds even if it may not record, and that it
// leaves no files behind.
func TestDemoRecordingNotPermitted(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	cmd := quickstart(t, "-otelctx", programs.Script(t, `[ "$1" != record ] || { echo "otelctx: not permitted"; exit 4; }`))
	cmd.Env = append(cmd.Env, "TMPDIR="+temp)
	out, code := runToEnd(t, cmd)
	require.Zero(t, code, out)
	assert.Contains(t, out, "Sampling is not permitted here")
	assertNoService(t, out)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestDemoOnlyParentMayRead checks that the demo shows the resource even if otelctx may not read the
// service, because the demo may read it as its parent.
func TestDemoOnlyParentMayRead(t *testing.T) {
	t.Parallel()
	refused := map[string]string{"by a stand-in": programs.Script(t, `echo "otelctx: not permitted"; exit 4`)}
	if os.Geteuid() == 0 {
		refused["by the kernel"] = programs.Script(t, "exec setpriv --reuid 65534 --regid 65534 --clear-groups "+buildOtelctx(t)+` "$@"`)
	}
	for name, command := range refused {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, code := runToEnd(t, quickstart(t, "-otelctx", command))
			require.Zero(t, code, out)
			assert.Contains(t, out, "not permitted")
			assert.Contains(t, out, "The kernel did not let otelctx read the service")
			assert.Contains(t, out, "\n  service.name: quickstart\n")
			assert.Regexp(t, `\n  process\.pid: \d+\n`, out)
			assertNoService(t, out)
		})
	}
}

func TestDemoFails(t *testing.T) {
	t.Parallel()
	notExecutable := filepath.Join(t.TempDir(), "not-executable")
	programs.Write(t, notExecutable, []byte("\x7fELF"))
	for name, test := range map[string]struct{ otelctx, want string }{
		"no otelctx":                {filepath.Join(t.TempDir(), "none"), "build it in cmd/otelctx"},
		"otelctx cannot be started": {notExecutable, "exec format error"},
		"otelctx dies of a signal":  {programs.Script(t, "kill -KILL $$"), "signal: killed"},
		"nothing is published":      {programs.Script(t, "exit 3"), "otelctx spans: exit code 3"},
		"recording fails":           {programs.Script(t, `[ "$1" != record ] || exit 1`), "otelctx record: exit code 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, code := runToEnd(t, quickstart(t, "-otelctx", test.otelctx))
			assert.Equal(t, 1, code, out)
			assert.Contains(t, out, test.want)
			assertNoService(t, out)
		})
	}
}
