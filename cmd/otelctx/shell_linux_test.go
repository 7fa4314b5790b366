// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/completion"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/internal/testing/golden"
)

// TestManual checks that the committed manual page is up to date, and that both the page and the help explain every
// exit code. The flag -update rewrites the page.
func TestManual(t *testing.T) {
	got := otelctx(t, "man")
	require.Zero(t, got.code, got.stderr)
	golden.Compare(t, "../otelctx.1", got.stdout)
	help := otelctx(t, "--help").stdout
	for _, e := range exitcode.Table {
		assert.Regexp(t, `(?m)^\s+`+strconv.Itoa(e.Code)+` +\w`, help)
		assert.Contains(t, got.stdout, fmt.Sprintf(".B %d\n%s\n", e.Code, strings.ReplaceAll(e.Text, "-", `\-`)))
	}
	if path, err := exec.LookPath("mandoc"); err == nil {
		out, err := exec.Command(path, "-T", "lint", "-W", "error", "otelctx.1").CombinedOutput()
		assert.NoError(t, err, string(out))
	}
}

// TestExitCodesInDocs checks that the table of exit codes in docs/exit-codes.md is up to date.
func TestExitCodesInDocs(t *testing.T) {
	docs, err := os.ReadFile("../../docs/exit-codes.md")
	require.NoError(t, err)
	table := []string{"| Exit code | |", "|--:|---|"}
	for _, e := range exitcode.Table {
		table = append(table, fmt.Sprintf("| %d | %s |", e.Code, e.Text))
	}
	assert.Contains(t, string(docs), strings.Join(table, "\n")+"\n\n")
}

// completers maps each shell to a script. The script loads the completions in the file that is its first argument,
// and prints how the shell completes each further argument. A line with == precedes each answer.
var completers = map[string]string{
	"bash": `source "$1"; shift
		for line; do
			IFS=" " read -ra COMP_WORDS <<<"$line"
			[[ $line == *" " ]] && COMP_WORDS+=("")
			COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
			_otelctx 2>/dev/null
			printf '\n==\n%s' "${COMPREPLY[*]}"
		done`,
	"fish": `source $argv[1]
		for line in $argv[2..]
			printf '\n==\n%s' (complete -C $line | string collect)
		end`,
	// zsh completes only on a terminal, and the terminal's output depends on timing. Therefore the script
	// binds a key that writes the completed line to a file.
	"zsh": `zmodload zsh/zpty
		zpty z zsh -f -i
		zpty -w z "PS1=; autoload -U compinit; compinit -u -D; setopt no_beep; source $1; written=$1.written; PS1=PRO''MPT"
		zpty -w z 'write() { print -r -- $BUFFER >>$written; BUFFER=; }; zle -N write; bindkey "^Xw" write; echo REA""DY'
		zpty -r z out '*READY*'
		script=$1; shift
		for line; do
			zpty -w -n z "$line"$'\t\t\x18w'"echo DO''NE"$'\n'
			zpty -r z out '*DONE*'
		done
		while read -r line; do print -r -- $'\n==\n'"$line"; done <$script.written
		zpty -d z`,
}

// TestCompletion checks that shells complete commands, flags, values and files, and the command after record --.
func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Symlink(executable(t), filepath.Join(dir, "otelctx")))
	pid := strconv.Itoa(startPublisher(t, "checkout", "1").PID())
	env := append(os.Environ(), asCommandKey+"=1", "PATH="+dir+":"+os.Getenv("PATH"), "TERM=dumb", "HOME="+dir)
	for shell, ask := range completers {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skip("no " + shell)
			}
			script := filepath.Join(dir, "completion."+shell)
			got := otelctx(t, "completion", shell)
			require.Zero(t, got.code, got.stderr)
			require.NoError(t, os.WriteFile(script, []byte(got.stdout), 0o600))
			lines, wants := []string{}, []string{}
			for line, want := range map[string]string{
				"otelctx ins":                         "inspect",
				"otelctx --he":                        "--help",
				"otelctx record --freq":               "--freq",
				"otelctx record --format pp":          "pprof",
				"otelctx record --carrier ":           "goroutine_record",
				"otelctx completion fi":               "fish",
				"otelctx record --freq 9 -- otelct":   "otelctx",
				"otelctx record -o " + dir + "/compl": "completion.",
			} {
				lines, wants = append(lines, line), append(wants, want)
			}
			if shell != "bash" { // bash splits words at =
				lines, wants = append(lines, "otelctx record --format=pp"), append(wants, "--format=pprof")
			}
			args := append([]string{"-c", ask, shell, script}, lines...)
			if shell == "fish" {
				args = append([]string{"--no-config", "-c", ask, script}, lines...)
			}
			cmd := exec.Command(path, args...)
			cmd.Env = env
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			answers := strings.Split(string(out), "\n==\n")[1:]
			require.Len(t, answers, len(lines), string(out))
			for i, want := range wants {
				assert.Contains(t, answers[i], want, lines[i])
			}
		})
	}
	for _, test := range []struct{ want, words string }{
		{"pprof\t\n", "record --format = pp"}, // bash splits at =
		{"html\t\n", "record --format ="},
		{pid + "\tcheckout\n", "watch " + pid[:2]},
		{"checkout\tprocess ", "watch che"},
		{pid + "\tcheckout\n", "record -F 9 1 -p " + pid[:2]},
	} {
		assert.Contains(t, otelctx(t, append([]string{completion.Complete}, strings.Fields(test.words)...)...).stdout, test.want)
	}
}
