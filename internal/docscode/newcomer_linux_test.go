// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package docscode

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// newcomersRead is what a newcomer reads, in this order.
var newcomersRead = []string{"README.md", "docs/getting-started.md"}

// commands are lines for a shell, with the reason why they are not run, if there is one, or
// the remark that they need root.
var commands = regexp.MustCompile("(?ms)(?:^<!-- (not run: [^\n]*|needs root) -->\n)?^```sh\n(.*?)^```$")

// newcomer is somebody with a clone and an empty home. What the go command has downloaded
// and compiled for others is there, since the documents do not say how to download Go modules.
type newcomer struct {
	clone string
	env   []string
}

// comesNew returns a newcomer.
func comesNew(t *testing.T) newcomer {
	t.Helper()
	n := newcomer{clone: filepath.Join(t.TempDir(), "otelctx"), env: []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}}
	for _, name := range []string{"GOCACHE", "GOFLAGS", "GOMODCACHE", "GONOSUMDB", "GOPROXY", "GOSUMDB", "GOTOOLCHAIN"} {
		value, err := exec.Command("go", "env", name).Output()
		require.NoError(t, err)
		n.env = append(n.env, name+"="+strings.TrimSpace(string(value)))
	}
	require.NoError(t, os.Mkdir(n.clone, 0o755))
	// As root, git clone refuses the repository of another user.
	out, err := exec.Command("bash", "-euo", "pipefail", "-c",
		`git -C "$1" -c safe.directory='*' archive HEAD | tar -x -C "$2"`, "bash", root, n.clone).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return n
}

// run executes lines in the clone, and returns what they print.
func (n newcomer) run(t *testing.T, lines string) string {
	t.Helper()
	// What the lines have started ends with them, also if one of them fails.
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"+lines)
	cmd.Dir, cmd.Env = n.clone, n.env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", lines, out)
	return string(out)
}

// A newcomer with a clone runs the commands of the documents, word for word. Each block of
// commands runs, or says why it does not. An ordinary user runs what needs no root.
func TestNewcomer(t *testing.T) {
	testenv.NeedAll(t)
	isRoot := os.Geteuid() == 0
	documents := readDocuments(t)
	n := comesNew(t)
	count := 0
	for _, name := range newcomersRead {
		found := commands.FindAllStringSubmatch(documents[name], -1)
		assert.Len(t, found, strings.Count(documents[name], "```sh\n"), "%s: a block of commands is not understood", name)
		for _, match := range found {
			if match[1] == "" || match[1] == "needs root" && isRoot {
				count++
				t.Logf("%s:\n%s%s", name, match[2], n.run(t, match[2]))
			} else {
				t.Logf("%s: %s:\n%s", name, match[1], match[2])
			}
		}
	}
	require.NotZero(t, count)

	// The program of README.md, recorded as README.md has it, or run alone.
	program := block.FindStringSubmatch(documents["README.md"])[1]
	require.True(t, strings.HasPrefix(program, "package main\n"))
	dir := filepath.Join(n.clone, "example", "newcomer")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644))
	const build = "make build\ncd example\ngo build -o ../bin/ ./newcomer\n"
	if !isRoot {
		n.run(t, build+"../bin/newcomer")
		return
	}
	out := n.run(t, build+"../bin/otelctx record -F 997 --group-by span -- ../bin/newcomer")
	t.Log(out)
	assert.Regexp(t, `(?m)^  \d\S+ +\d\S*% .* work$`, out, "the span's name")
}
