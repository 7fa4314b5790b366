// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"sync"

	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/reader"
)

// warnings passes each warning on once, one at a time. It is safe for concurrent use.
type warnings struct {
	mu   sync.Mutex
	said map[warning]bool
	to   func(error) // nil drops them
}

// warning identifies a warning: the process that it is about, or 0, and the reason.
type warning struct {
	pid    int
	reason string
}

func newWarnings(to func(error)) *warnings { return &warnings{said: map[warning]bool{}, to: to} }

// say passes err on unless the same was said of the process before. Errors of the kinds below count as
// the same whatever their text, so a process that varies the text fills neither memory nor screen.
func (w *warnings) say(pid int, err error) {
	if w.to == nil {
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
	if w.said[key] {
		return
	}
	w.said[key] = true
	if pid != 0 {
		err = NewProcessError(pid, err)
	}
	w.to(err)
}

// forget drops what is known of processes that no longer exist.
func (w *warnings) forget(exists func(pid int) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.said {
		if key.pid != 0 && !exists(key.pid) {
			delete(w.said, key)
		}
	}
}
