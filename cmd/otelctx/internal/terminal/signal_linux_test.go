// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/pseudoterminal"
)

const hangs = "OTELCTX_TEST_HANGS"

func TestMain(m *testing.M) {
	if os.Getenv(hangs) == "" {
		os.Exit(m.Run())
	}
	_, release := UntilInterrupted()
	defer release()
	if err := NewScreen(os.Stdout).Show([]byte("shown")); err != nil {
		panic(err)
	}
	if _, err := os.Stderr.WriteString("ready"); err != nil {
		panic(err)
	}
	select {}
}

// TestSecondSignal checks that a second signal ends a command that does not react to the first one, and that the terminal
// has its usual screen again.
func TestSecondSignal(t *testing.T) {
	screen := pseudoterminal.Open(t, 80, 24)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), hangs+"=1", "TERM=xterm")
	cmd.Stdout = screen.File
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ready := make([]byte, len("ready"))
	_, err = stderr.Read(ready)
	require.NoError(t, err)

	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case err := <-ended:
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, syscall.SIGTERM, exit.Sys().(syscall.WaitStatus).Signal())
			output := screen.Output()
			assert.True(t, strings.HasSuffix(output, "shown"+leave), "%q", output)
			return
		case <-tick.C:
			if err := cmd.Process.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
				require.NoError(t, err)
			}
		}
	}
}
