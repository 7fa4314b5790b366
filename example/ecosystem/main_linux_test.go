// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// built is a directory with all commands.
var built string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ecosystem-test-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		built, err = dir, build(dir)
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return m.Run()
}

// build builds all commands, each in the module that knows what it takes.
func build(dir string) error {
	for module, packages := range map[string][]string{
		".":                 {".", "./collector", "./join"},
		"..":                {"./quickstart"},
		"../../cmd/otelctx": {"."},
	} {
		command := exec.Command("go", append([]string{"build", "-o", dir + "/"}, packages...)...)
		command.Dir = module
		if out, err := command.CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
	}
	return nil
}

// program returns the path of a command.
func program(name string) string { return filepath.Join(built, name) }

// ecosystem runs the command to its end. Arguments come after those that say where the
// other commands are.
func ecosystem(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), program("ecosystem"), append([]string{
		"-collector", program("collector"), "-quickstart", program("quickstart"), "-otelctx", program("otelctx"), "-join", program("join"),
	}, args...)...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	command.WaitDelay = time.Second // What is left behind would hold the pipes.
	if err := command.Run(); err != nil {
		exit := (*exec.ExitError)(nil)
		require.ErrorAs(t, err, &exit, errs.String())
	}
	return out.String(), errs.String(), command.ProcessState.ExitCode()
}

// script writes an executable shell script.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
	return path
}

// What goes wrong is said, ends what runs and leaves no files behind.
func TestFails(t *testing.T) {
	fails := script(t, "exit 7")
	for name, test := range map[string]struct {
		args []string
		want string
		code int
	}{
		"no collector":              {[]string{"-collector", "none"}, "executable file not found", 1},
		"the collector ends":        {[]string{"-collector", fails}, "has not come to listen", 1},
		"the service ends":          {[]string{"-quickstart", fails}, "the service has ended before it served", 1},
		"the service says nonsense": {[]string{"-quickstart", script(t, "echo hello; exec sleep 60")}, `the service said "hello", not pid=`, 1},
		"the service ends early": {
			[]string{"-quickstart", script(t, "echo pid=$$"), "-otelctx", script(t, "while kill -0 $2; do sleep 0.1; done; sleep 0.5")},
			"has ended too early: exit status 0", 1,
		},
		"recording fails":         {[]string{"-otelctx", fails}, "exit status 7", 1},
		"recording not permitted": {[]string{"-otelctx", script(t, "echo not permitted >&2; exit 4")}, "not permitted", exitNotPermitted},
		"joining fails":           {[]string{"-otelctx", script(t, "exit 0"), "-join", fails}, "exit status 7", 1},
	} {
		t.Run(name, func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			args := append([]string{"-duration", "100ms"}, test.args...)
			_, stderr, code := ecosystem(t, args...)
			assert.Equal(t, test.code, code)
			assert.Contains(t, stderr, test.want)
			left, err := os.ReadDir(temp)
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}
