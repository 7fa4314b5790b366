// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/processcontext"

	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// Tests read until they reach these thresholds. They are generous: a few hundred reads are enough to
// detect a reader that misses updates, or a publisher that overwrites memory while it is read.
var (
	wantReads   = testenv.Rounds(4_000, 50_000)
	wantUpdates = testenv.Rounds(2_000, 20_000)
	// wantDistinct is the number of different publications to read. Without it, a test could pass
	// although reads and updates hardly overlap, for example on a single CPU.
	wantDistinct = testenv.Rounds(400, 2_000)
)

// A test continues until it has read a text of at most small bytes and a text of at least large bytes.
const (
	small = 50
	large = 50_000
)

// readStats holds statistics about a reader's results.
type readStats struct {
	reads    int // complete reads
	distinct int // distinct publications
	busy     int // calls in which every attempt coincided with an update
	last     int // number of the last publication
	smallest int
	largest  int
}

// readUnderFire reads in a tight loop until it has reached all thresholds. Each read must return a
// complete publication that is not older than the previous one, or the error busy.
func readUnderFire(t *testing.T, read readFunc, busy error) readStats {
	t.Helper()
	var (
		f           = readStats{last: -1, smallest: math.MaxInt}
		publishedAt uint64
		start       = time.Now()
	)
	for f.reads < wantReads || f.last < wantUpdates || f.distinct < wantDistinct || f.smallest > small || f.largest < large {
		if f.reads%1024 == 0 || f.busy%1024 == 1 {
			require.Less(t, time.Since(start), 6*time.Minute, "%+v", f)
		}
		// Yield: on a single CPU, this loop would keep a publisher in the same process from running.
		runtime.Gosched()
		o, err := read()
		if errors.Is(err, busy) {
			f.busy++
			continue
		}
		require.NoError(t, err, "after %+v", f)
		n, err := numberOf(o)
		require.NoError(t, err, "torn, after %+v", f)
		switch {
		case n < f.last:
			require.Failf(t, "gone back", "from %d to %d", f.last, n)
		case n > f.last != (o.publishedAtNS > publishedAt):
			require.Failf(t, "equal timestamps of different publications", "%d at %d, %d at %d",
				f.last, publishedAt, n, o.publishedAtNS)
		case n > f.last:
			f.distinct++
		}
		f.reads++
		f.last, publishedAt = n, o.publishedAtNS
		size := len(o.message.GetResource().GetAttributes()[0].GetValue().GetStringValue())
		f.smallest, f.largest = min(f.smallest, size), max(f.largest, size)
	}
	t.Logf("%d complete reads of %d publications out of %d, with texts of %d to %d bytes, 0 torn, 0 invalid, %d busy, in %v",
		f.reads, f.distinct, f.last, f.smallest, f.largest, f.busy, time.Since(start).Round(time.Millisecond))
	return f
}

// TestUnderFire reads with each reader while this process updates its context.
func TestUnderFire(t *testing.T) {
	for name, test := range map[string]struct {
		read func(t *testing.T, pid int) readFunc
		busy error
	}{
		"our reader":      {func(t *testing.T, pid int) readFunc { return ourReader(t, open(t, pid)) }, reader.ErrBusy},
		"official reader": {officialReader, processcontext.ErrConcurrentUpdate},
	} {
		t.Run(name, func(t *testing.T) {
			pub, err := resourcepublisher.New(numbered(0))
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, pub.Shutdown(context.Background())) })
			read := test.read(t, os.Getpid())
			var stop atomic.Bool
			var last int
			done := make(chan error, 1)
			go func() {
				var err error
				last, err = updateUntil(&stop, pub)
				done <- err
			}()
			f := func() readStats {
				defer stop.Store(true)
				return readUnderFire(t, read, test.busy)
			}()
			require.NoError(t, <-done)
			assert.GreaterOrEqual(t, last, f.last, "the number of a publication that does not exist")
			// The publisher has stopped updating, so this read must return its last publication.
			o, err := read()
			require.NoError(t, err)
			n, err := numberOf(o)
			require.NoError(t, err)
			assert.Equal(t, last, n)
		})
	}
}
