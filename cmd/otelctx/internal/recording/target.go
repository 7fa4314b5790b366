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

	// The rest is for who looks after the targets.

	// used is what the process had used of the processors at the last look, and active
	// when that had last changed.
	used   uint64
	active time.Time
	// refreshAfter is when the mappings may be looked at again.
	refreshAfter time.Time

	// users counts who needs what is open: the one who looks after it, and parts.
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
