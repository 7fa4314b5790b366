// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package terminal

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// InForeground reports whether w is a terminal and this process does not run in its background (a command that the shell
// started with &). With stty tostop, a process that writes to the terminal in the background is stopped.
func InForeground(w io.Writer) bool {
	if !IsTerminal(w) {
		return false
	}
	f, _ := w.(*os.File)
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp() // An error means that w is not this process's own terminal.
}
