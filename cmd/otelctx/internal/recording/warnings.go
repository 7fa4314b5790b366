// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"sync"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/process"
	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/reader"
)

// warnings passes each warning to sink once. Calls of sink do not overlap. It is safe for concurrent use.
type warnings struct {
	mu       sync.Mutex
	reported map[warning]bool
	sink     func(error) // nil drops them
}

// warning identifies a warning by the id of its process, or 0, and the reason.
type warning struct {
	pid    int
	reason string
}

func newWarnings(sink func(error)) *warnings {
	return &warnings{reported: map[warning]bool{}, sink: sink}
}

// warn reports err unless it has been reported for the process before. Errors of the kinds below count as
// equal whatever their text, so that a process that varies the text can fill neither the memory nor the
// screen.
func (w *warnings) warn(pid int, err error) {
	if w.sink == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := warning{pid, err.Error()}
	for _, kind := range []error{patient.ErrNoAnswer, patient.ErrTooMany, reader.ErrInvalid, reader.ErrBusy, errMappings} {
		if errors.Is(err, kind) {
			key.reason = kind.Error()
		}
	}
	if w.reported[key] {
		return
	}
	w.reported[key] = true
	if pid != 0 {
		err = process.NewError(pid, err)
	}
	w.sink(err)
}

// forget drops the state of processes that no longer exist.
func (w *warnings) forget(exists func(pid int) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.reported {
		if key.pid != 0 && !exists(key.pid) {
			delete(w.reported, key)
		}
	}
}
