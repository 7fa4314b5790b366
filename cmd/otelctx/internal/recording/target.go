// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"sync/atomic"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/allocations"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/requests"
	"github.com/otelctx/otelctx/reader"
)

// target is a recorded program, from one exec of its process to the next.
type target struct {
	image   sampler.Image
	reader  *reader.Process
	symbols *symbols.Process
	exit    exit
	// published is the current publication, to which samples are attributed.
	published atomic.Pointer[published]
	// seen reports whether the program has been sampled since its last scan.
	seen atomic.Bool

	// sites are the places of the probes for allocations until the probes are set, and otherwise nil.
	sites *allocations.Sites
	// rate is the runtime.MemProfileRate of the program: the last one that was read and not 0, or 0 if there is none.
	rate atomic.Uint64

	// requests reads the number of requests to each endpoint.
	requests requests.Process

	// user is the id of the user who started the process.
	user int

	// The set guards these fields. used is the process's CPU time at the last scan, and active is the
	// time of the last change of used. retired is the time at which the recording of the program ended, or
	// zero.
	used            uint64
	active, retired time.Time

	// refreshAfter is the earliest time to read the mappings again. Only the scan of the process uses it,
	// and there is at most one at a time.
	refreshAfter time.Time

	// scanner.watching guards these fields. unadvertised is the time at which a ring without advertisement
	// was found, or zero. readAnyway reports whether the ring is read although it has not been advertised.
	unadvertised time.Time
	readAnyway   bool

	// references counts the references held by the set, by scans, by batches, by live objects and by reads of span names.
	references atomic.Int32
}

// acquire adds a reference. The last release closes the target.
func (t *target) acquire() { t.references.Add(1) }

func (t *target) release() {
	if t.references.Add(-1) > 0 {
		return
	}
	_ = t.reader.Close()
	_ = t.symbols.Close()
	t.exit.close()
	if t.sites != nil {
		_ = t.sites.Close()
	}
}

func (t *target) ended() bool { return t.exit.happened() }
