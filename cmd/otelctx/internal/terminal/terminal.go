// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package terminal is a command's access to its terminal: the streams for its output, how much fits on it, the screen
// that shows output in place, and the signals by which users end a command.
package terminal

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
)

// Streams are the destinations of a command's output.
type Streams struct{ Stdout, Stderr io.Writer }

// Complainf writes a line to Stderr. It escapes the message, which may quote other processes.
func (s Streams) Complainf(format string, args ...any) {
	// If Stderr fails, there is no place to report the error.
	_, _ = fmt.Fprintln(s.Stderr, "otelctx:", display.Escape(fmt.Sprintf(format, args...)))
}

// IsTerminal reports whether w is a terminal that can move its cursor and show colours.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// Layout returns the layout of text on w. If wide is true, lines have any length, and nothing is left out.
func Layout(w io.Writer, wide bool) display.Layout {
	l := display.Layout{Wide: wide, Colours: IsTerminal(w) && os.Getenv("NO_COLOR") == ""}
	if width, _ := size(w); width > 0 && !wide {
		l.Width = max(width, minWidth)
	}
	return l
}

// minWidth is the width to which text is fitted on narrower terminals, which break the lines.
const minWidth = 60

// size returns the size of a terminal in characters, or 0 if w is no terminal or does not know its size. The variables
// COLUMNS and LINES do not count: a shell sets them for its own terminal, not for the one that otelctx writes to.
func size(w io.Writer) (width, height int) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}
