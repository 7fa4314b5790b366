// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package terminal holds what a command has of its terminal: the streams for its output, and the signals by which users
// end it.
package terminal

import (
	"fmt"
	"io"
	"os"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
)

// Streams are the destinations of a command's output.
type Streams struct{ Stdout, Stderr io.Writer }

// Complainf writes a line to Stderr. It escapes the message, which may quote other processes.
func (s Streams) Complainf(format string, args ...any) {
	// If Stderr fails, there is no place to report the error.
	_, _ = fmt.Fprintln(s.Stderr, "otelctx:", display.Escape(fmt.Sprintf(format, args...)))
}

// IsTerminal reports whether w is a terminal that can move its cursor.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Clear moves the cursor to the top left and clears the screen.
const Clear = "\x1b[H\x1b[J"

// MaxLines is the maximum number of threads or spans updated in place on a terminal, because lines that
// scroll off the screen cannot be overwritten.
const MaxLines = 40
