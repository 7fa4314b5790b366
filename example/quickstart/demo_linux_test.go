// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDemo(t *testing.T) {
	dir := binaries(t)
	users := map[string]*syscall.SysProcAttr{"this user": nil}
	if os.Geteuid() == 0 {
		users["an ordinary user"] = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	for name, user := range users {
		t.Run(name, func(t *testing.T) {
			cmd := quickstart(dir, "-otelctx", filepath.Join(dir, "otelctx"), "-duration", "1500ms")
			cmd.Env = append(cmd.Env, "TMPDIR="+openDir(t))
			cmd.SysProcAttr = user
			out, code := runToEnd(t, cmd)
			require.Zero(t, code, out)
			assert.Contains(t, out, "has answered 50 requests")
			assert.Contains(t, out, "$ otelctx list\nPID")
			assert.Contains(t, out, "$ otelctx inspect ")
			// Either otelctx or the demo itself has read the service's own start.
			assert.Regexp(t, `(?m)^  service\.instance\.id\W +?[0-9a-f]{8}-[0-9a-f-]{27}$`, out)
			assertRecorded(t, out)
			assert.Contains(t, out, "The service ends.")
			assertNoService(t, out)
		})
	}
}

// openDir returns a directory that every user may write to.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o777))
	}
	return dir
}

// assertRecorded fails if a demo has neither recorded the service nor said why not.
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

// What cannot be recorded is not what a demo fails for, but leaves nothing behind.
func TestDemoWhereRecordingIsNotPermitted(t *testing.T) {
	dir, temp := binaries(t), t.TempDir()
	command := script(t, dir, "no-record", `[ "$1" != record ] || { echo "otelctx: not permitted"; exit 4; }`)
	cmd := quickstart(dir, "-otelctx", command)
	cmd.Env = append(cmd.Env, "TMPDIR="+temp)
	out, code := runToEnd(t, cmd)
	require.Zero(t, code, out)
	assert.Contains(t, out, "Sampling is not permitted here")
	assertNoService(t, out)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// otelctx is kept from reading the service, but the service's parent is not.
func TestDemoWhereOnlyParentsMayRead(t *testing.T) {
	dir := binaries(t)
	otelctx := filepath.Join(dir, "otelctx")
	refused := map[string]string{
		"by a stand-in": script(t, dir, "stand-in", `[ "$1" = list ] || { echo "otelctx: not permitted"; exit 4; }`),
	}
	if os.Geteuid() == 0 {
		refused["by the kernel"] = script(t, dir, "as-nobody",
			"exec setpriv --reuid 65534 --regid 65534 --clear-groups "+otelctx+` "$@"`)
	}
	for name, command := range refused {
		t.Run(name, func(t *testing.T) {
			out, code := runToEnd(t, quickstart(dir, "-otelctx", command))
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
	dir := binaries(t)
	notExecutable := filepath.Join(dir, "not-executable")
	require.NoError(t, os.WriteFile(notExecutable, []byte("\x7fELF"), 0o755))
	for name, test := range map[string]struct{ otelctx, want string }{
		"no otelctx":                {filepath.Join(dir, "none"), "build it in cmd/otelctx"},
		"otelctx cannot be started": {notExecutable, "exec format error"},
		"otelctx dies of a signal":  {script(t, dir, "dies", "kill -KILL $$"), "signal: killed"},
		"list fails":                {script(t, dir, "list-fails", "exit 1"), "otelctx list: exit code 1"},
		"nothing is published":      {script(t, dir, "inspect-fails", `[ "$1" = list ] || exit 3`), "otelctx inspect: exit code 3"},
		"recording fails":           {script(t, dir, "record-fails", `[ "$1" != record ] || exit 1`), "otelctx record: exit code 1"},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := runToEnd(t, quickstart(dir, "-otelctx", test.otelctx))
			assert.Equal(t, 1, code, out)
			assert.Contains(t, out, test.want)
			assertNoService(t, out)
		})
	}
}
