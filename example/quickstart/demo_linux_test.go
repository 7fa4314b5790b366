// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
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
			cmd := quickstart(dir, "-otelctx", filepath.Join(dir, "otelctx"))
			cmd.SysProcAttr = user
			out, code := runToEnd(t, cmd)
			require.Zero(t, code, out)
			assert.Contains(t, out, "has answered 50 requests")
			assert.Contains(t, out, "$ otelctx list\nPID")
			assert.Contains(t, out, "$ otelctx inspect ")
			// Either otelctx or the demo itself has read the service's own start.
			assert.Regexp(t, `(?m)^  service\.instance\.id\W +?[0-9a-f]{8}-[0-9a-f-]{27}$`, out)
			assert.Contains(t, out, "The service ends.")
			assertNoService(t, out)
		})
	}
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
	} {
		t.Run(name, func(t *testing.T) {
			out, code := runToEnd(t, quickstart(dir, "-otelctx", test.otelctx))
			assert.Equal(t, 1, code, out)
			assert.Contains(t, out, test.want)
			assertNoService(t, out)
		})
	}
}
