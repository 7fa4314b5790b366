// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"sync/atomic"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/reader"
)

// target is a program that is recorded, from one exec of its process to the next.
type target struct {
	image   sampler.Image
	reader  *reader.Process
	symbols *symbols.Process
	exit    exit
	// published is what samples are attributed to.
	published atomic.Pointer[published]
	// seen says that there were samples since the last look at the process.
	seen atomic.Bool

	// user is who has started the process.
	user int

	// Guarded by the registry: used is the CPU time of the process at the last look, active when that
	// had last changed, and retired when the recording of the program ended, zero before.
	used            uint64
	active, retired time.Time

	// For the look at the process, of which there is one at a time: refreshAfter is when the mappings
	// may be read again.
	refreshAfter time.Time

	// Guarded by watcher.watching: unadvertised is when a ring was found that is not advertised, zero
	// if there is none. readAnyway says that it is read nevertheless.
	unadvertised time.Time
	readAnyway   bool

	// users counts those who need what is open: the registry, looks and parts.
	users atomic.Int32
}

// hold keeps what is open from being closed until release.
func (t *target) hold() { t.users.Add(1) }

func (t *target) release() {
	if t.users.Add(-1) > 0 {
		return
	}
	_ = t.reader.Close()
	_ = t.symbols.Close()
	t.exit.close()
}

// ended reports whether the process has ended.
func (t *target) ended() bool { return t.exit.happened() }
