// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
)

// Control sequences of xterm, which all current terminals understand.
const (
	// enter switches to the alternate screen, hides the cursor, and lets the terminal cut lines that are too long.
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	// leave undoes enter.
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	// clearAll moves the cursor to the top left and clears the screen.
	clearAll = "\x1b[H\x1b[J"
)

// Screen shows a sequence of frames. On a terminal, each frame replaces the one before. The alternate screen is used for
// this, so that the terminal has its old contents again after Close. Elsewhere, the frames follow each other, separated
// by empty lines.
type Screen struct {
	w       io.Writer
	inPlace bool
}

// entered is the screen that has switched to the alternate screen, if any.
var entered atomic.Pointer[Screen]

// NewScreen returns a screen that writes to w.
func NewScreen(w io.Writer) *Screen { return &Screen{w: w, inPlace: IsTerminal(w)} }

// Show shows a frame, or as many of its lines as the terminal has.
func (s *Screen) Show(frame []byte) error {
	if !s.inPlace {
		_, err := s.w.Write(append(frame, '\n'))
		return err
	}
	out := []byte(clearAll)
	if entered.CompareAndSwap(nil, s) {
		out = []byte(enter + clearAll)
	}
	_, height := size(s.w)
	_, err := s.w.Write(append(out, bytes.TrimSuffix(cutLines(frame, height), []byte("\n"))...))
	return err
}

// cutLines returns the first lines of a frame, at most height of them. If lines are left out, the last one says how many.
// Lines that scrolled off the screen could not be replaced.
func cutLines(frame []byte, height int) []byte {
	lines := bytes.SplitAfter(frame, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	if height <= 1 || len(lines) <= height {
		return frame
	}
	return fmt.Appendf(bytes.Join(lines[:height-1], nil), "… %d more lines do not fit", len(lines)-height+1)
}

// Close returns to the terminal's usual screen.
func (s *Screen) Close() error {
	if !entered.CompareAndSwap(s, nil) {
		return nil
	}
	_, err := io.WriteString(s.w, leave)
	return err
}
