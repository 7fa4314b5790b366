// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package pseudoterminal lets tests see what a program writes to a terminal.
package pseudoterminal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Terminal is a pseudoterminal: programs write to the file.
type Terminal struct {
	*os.File

	shown chan string
}

// Open opens a terminal of this size. It skips the test if the machine has no pseudoterminals.
func Open(t testing.TB, columns, rows uint16) *Terminal {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no pseudoterminals: no /dev/ptmx")
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = screen.Close() })
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	require.NoError(t, unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
	file, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	terminal := &Terminal{file, make(chan string, 1)}
	go func() {
		var shown strings.Builder
		_, _ = io.Copy(&shown, screen) // It ends with EIO when nobody has the terminal open any longer.
		terminal.shown <- shown.String()
	}()
	return terminal
}

// Output closes the terminal and returns what was written to it. Other processes must have closed it.
func (t *Terminal) Output() string {
	_ = t.Close()
	return strings.ReplaceAll(<-t.shown, "\r\n", "\n")
}
