// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Environment variables.
const (
	enabledKey = "OTELCTX_TEST_BACKENDS" // set by make interop WHAT=backends
	cacheKey   = "OTELCTX_BACKENDS_CACHE"
)

// server is a program that is built from a Go module.
type server struct {
	name, module, version string
	// prepare changes a copy of the module's source so that it can be built.
	prepare func(t *testing.T, source string)
}

// needBackends skips the test unless make interop WHAT=backends runs it.
func needBackends(t *testing.T) {
	t.Helper()
	if os.Getenv(enabledKey) == "" {
		t.Skip("only make interop WHAT=backends runs this")
	}
}

// cacheDir returns the directory in which test runs share built and downloaded programs.
func cacheDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(cacheKey)
	if dir == "" {
		user, err := os.UserCacheDir()
		require.NoError(t, err)
		dir = filepath.Join(user, "otelctx-backends")
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	return dir
}

// cached returns the cache's subdirectory with the given name. If it is missing, cached creates it
// and calls fill to fill it.
func cached(t *testing.T, name string, fill func(dir string)) (dir string) {
	t.Helper()
	dir = filepath.Join(cacheDir(t), name)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	unfinished := dir + ".unfinished"
	require.NoError(t, os.RemoveAll(unfinished))
	require.NoError(t, os.MkdirAll(unfinished, 0o755))
	t.Logf("building %s, which takes minutes", name)
	fill(unfinished)
	require.NoError(t, os.Rename(unfinished, dir))
	return dir
}

// build builds the server and returns the program's path. It skips the test if the module cannot be
// downloaded.
func (s server) build(t *testing.T) (program string) {
	t.Helper()
	dir := cached(t, s.name+"-"+s.version, func(dir string) {
		answer, err := goCommand(dir, "mod", "download", "-json", s.module+"@"+s.version).Output()
		if err != nil {
			t.Skipf("cannot download %s %s: %v: %s", s.module, s.version, err, answer)
		}
		var downloaded struct{ Dir string }
		require.NoError(t, json.Unmarshal(answer, &downloaded))
		source := filepath.Join(dir, "source")
		require.NoError(t, os.CopyFS(source, os.DirFS(downloaded.Dir)))
		s.prepare(t, source)
		run(t, goCommand(source, "build", "-mod=mod", "-o", filepath.Join(dir, s.name), "./cmd/"+s.name))
		require.NoError(t, os.RemoveAll(source))
	})
	return filepath.Join(dir, s.name)
}

// goCommand returns a go command that runs in dir and ignores go.work.
func goCommand(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	return cmd
}

// run runs a command and fails the test if the command fails.
func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%v: %s", cmd.Args, output)
}
