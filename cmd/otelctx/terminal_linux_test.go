// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rivo/uniseg"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/internal/testing/pseudoterminal"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// controlSequence matches the sequences that change colours, move the cursor or switch screens.
var controlSequence = regexp.MustCompile(`\x1b\[[?0-9;]*[a-zA-Z]`)

// TestOutputFitsTerminal checks that no line is longer than the terminal is wide, that columns are left out before ids and
// times are cut, and that --wide and pipes show everything. COLUMNS is wrong on purpose: it may be that of another terminal.
func TestOutputFitsTerminal(t *testing.T) {
	t.Setenv("COLUMNS", "300")
	t.Setenv("TERM", "xterm")
	w := startWorker(t)
	long := startPublisher(t, strings.Repeat("a long name ", 20), "7f1d6bcd-3f0a-4a6e-9a3a-3d1b9c0a5f11")
	for _, args := range []string{
		"list", "inspect " + w.pid, fmt.Sprint("inspect ", long.PID()), "spans " + w.pid, "spans --stacks " + w.pid, "spans --group " + w.pid,
		"watch --count 1 " + w.pid, "goroutines " + w.pid, "verify -v -d 10ms " + w.pid, "record --wall -d 100ms " + w.pid,
	} {
		for _, width := range []int{80, 120} {
			screen := pseudoterminal.Open(t, uint16(width), 500)
			var stderr bytes.Buffer
			require.Zero(t, run(strings.Fields(args), terminal.Streams{Stdout: screen.File, Stderr: &stderr}), stderr.String())
			output := controlSequence.ReplaceAllString(screen.Output(), "")
			for line := range strings.Lines(output) {
				assert.LessOrEqual(t, uniseg.StringWidth(strings.TrimSuffix(line, "\n")), width, "%s: %s", args, line)
			}
			switch command, _, _ := strings.Cut(args, " "); command {
			case "list":
				assert.Regexp(t, `(?m)^PID +SERVICE +INSTANCE .*PUBLISHED$`, output)
				assert.Regexp(t, `(?m)^\d+ +"a long name a long.*… +7f1d6bcd.* ago$`, output)
			case "spans", "watch":
				assert.Equal(t, args != "spans --group "+w.pid, strings.Contains(output, w.traceID[:8]), args)
				assert.NotContains(t, output, w.traceID[:9])
				assert.NotContains(t, output, "LOCAL ROOT")
			}
		}
	}
	for _, command := range []string{"spans", "watch --count 1"} {
		screen := pseudoterminal.Open(t, 80, 24)
		require.Zero(t, run(strings.Fields(command+" --wide "+w.pid), terminal.Streams{Stdout: screen.File, Stderr: new(bytes.Buffer)}))
		output := screen.Output()
		for _, want := range []string{w.traceID, w.spanID, w.rootSpan, "LOCAL ROOT", `tenant="7"`} {
			assert.Contains(t, output, want, command)
		}
		assert.Contains(t, printed(t, strings.Fields(command+" "+w.pid)...), `tenant="7"`, "lines in a pipe have any length")
	}
	w.Ask("end")
	w.Done()
}

// TestAlternateScreen checks that watch and spans --watch replace their output in place, on the alternate screen, that they
// show no more lines than the terminal has, and that they restore the terminal.
func TestAlternateScreen(t *testing.T) {
	t.Setenv("TERM", "xterm")
	w := startWorker(t)
	const rows = 3
	screen := pseudoterminal.Open(t, 80, rows)
	require.Zero(t, run([]string{"watch", w.pid, "--count", "2", "--interval", "1ms"}, terminal.Streams{Stdout: screen.File, Stderr: new(bytes.Buffer)}))
	output := screen.Output()
	const enter, leave, clearAll = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l", "\x1b[H\x1b[J"
	require.True(t, strings.HasPrefix(output, enter+clearAll), "%q", output)
	require.True(t, strings.HasSuffix(output, leave), "%q", output)
	assert.Equal(t, 1, strings.Count(output, enter))
	frames := strings.Split(strings.TrimSuffix(output, leave), clearAll)[1:]
	require.Len(t, frames, 2)
	for _, frame := range frames {
		assert.Equal(t, rows, 1+strings.Count(frame, "\n"), "%q", frame)
		assert.Contains(t, frame, w.spanID[:8])
	}

	screen = pseudoterminal.Open(t, 80, 2)
	require.Zero(t, run([]string{"watch", w.pid, "--count", "1"}, terminal.Streams{Stdout: screen.File, Stderr: new(bytes.Buffer)}))
	assert.Contains(t, screen.Output(), "\n… 2 more lines do not fit"+leave)
	w.Ask("end")
	w.Done()
}

// TestTop checks that top shows one table of endpoints and one of span names for each update, and ends after --count updates.
func TestTop(t *testing.T) {
	t.Parallel()
	w := startWorker(t)
	for args, tables := range map[string]string{
		"--wall": `(?s)Top endpoints by wall-clock time.* outer\n.*Top span names by wall-clock time.* inner +outer\n`,
		"":       `(?s)Top endpoints by CPU time.* outer\n.*Top span names by CPU time.* inner\n`,
	} {
		got := inProcess(t, strings.Fields("top --count 2 --interval 100ms "+args+" "+w.pid)...)
		if got.code == exitNotPermitted && args == "" {
			t.Log("not permitted to sample:", got.stderr)
			continue
		}
		require.Zero(t, got.code, got.stderr)
		assert.Equal(t, 2, strings.Count(got.stdout, "Process "+w.pid), got.stdout)
		assert.NotContains(t, got.stdout, "for each sample", "columns are not explained")

		// On a busy machine, there are updates in which the process does not run.
		r := start(t, strings.Fields("top --interval 100ms "+args+" "+w.pid)...)
		complete := regexp.MustCompile(tables)
		require.Eventually(t, func() bool { return complete.MatchString(r.stdout.String()) }, testenv.Patience, tick)
		got = r.interrupt(t)
		require.Zero(t, got.code, got.stderr)
		for _, update := range strings.Split(got.stdout, "Process "+w.pid)[1:] {
			for _, head := range []string{"Top endpoints", "Top span names"} {
				assert.LessOrEqual(t, strings.Count(update, head), 1, update)
			}
			assert.Regexp(t, `^( \(worker\))?: `, update)
		}
	}
	w.Kill()
	got := inProcess(t, "top", "--wall", w.pid)
	assert.Equal(t, exitProcessGone, got.code, got.stderr)
}

// TestRecordOnStoppedTerminal checks that record goes on, to its end, while the user has stopped the terminal's output (Ctrl-S)
// and the progress cannot be drawn.
func TestRecordOnStoppedTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	w := startWorker(t)
	screen := pseudoterminal.Open(t, 80, 24)
	flow := func(action int) { require.NoError(t, unix.IoctlSetInt(int(screen.Fd()), unix.TCXONC, action)) }
	flow(unix.TCOOFF)
	path := filepath.Join(t.TempDir(), "wall.pb.gz")
	ended := make(chan int)
	go func() {
		ended <- run([]string{"record", "--wall", "-d", "1s", "-o", path, w.pid}, terminal.Streams{Stdout: new(bytes.Buffer), Stderr: screen.File})
	}()
	assert.Eventually(t, func() bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() > 0
	}, testenv.Patience, 10*time.Millisecond, "the profile is not written")
	flow(unix.TCOON)
	assert.Zero(t, <-ended)
	assert.Contains(t, screen.Output(), "Recording")
	w.Ask("end")
	w.Done()
}

// TestRecordInBackground checks that record shows no progress if the shell runs it in the background, where stty tostop
// would stop it.
func TestRecordInBackground(t *testing.T) {
	t.Setenv("TERM", "xterm")
	w := startWorker(t)
	screen := pseudoterminal.Open(t, 80, 24)
	settings, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
	require.NoError(t, err)
	settings.Lflag |= unix.TOSTOP
	require.NoError(t, unix.IoctlSetTermios(int(screen.Fd()), unix.TCSETS, settings))
	var report bytes.Buffer
	// In the foreground, the shell waits until the recording has ended or was stopped.
	shell := exec.Command("sh", "-c", `set -m; "$0" record --wall -d 1s "$1" & wait $!; kill -KILL $! 2>/dev/null; true`, executable(t), w.pid)
	shell.Env = append(os.Environ(), asCommandKey+"=1")
	shell.Stdin, shell.Stdout, shell.Stderr = screen.File, &report, screen.File
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, shell.Run())
	assert.Contains(t, report.String(), "inner", "the recording was stopped")
	assert.NotContains(t, screen.Output(), "Recording")
	w.Ask("end")
	w.Done()
}
