// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/reader"
)

// TestWarnOnce gives each process one warning for each kind of error, whatever texts the
// process provokes.
func TestWarnOnce(t *testing.T) {
	var got []string
	c := &Config{Warn: func(err error) { got = append(got, err.Error()) }}
	ts := &targets{config: c, warned: map[warning]bool{}}
	for round := range 3 {
		for pid := 1; pid <= 2; pid++ {
			ts.warn(pid, fmt.Errorf("%d: %w: text %d", pid, reader.ErrInvalid, round))
			ts.warn(pid, fmt.Errorf("%d: %w: text %d", pid, patient.ErrNoAnswer, round))
		}
		ts.warn(0, reader.ErrBusy)
	}
	assert.Len(t, got, 5, "%q", got)
}
