// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"strconv"
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

// What it takes to be enough. A reader that does not notice updates, or a publisher that
// writes over what is being read, is seen within some hundred reads.
var (
	wantReads   = testenv.Rounds(4_000, 50_000)
	wantUpdates = testenv.Rounds(2_000, 20_000)
	// wantDistinct keeps the test from passing where reads and updates hardly met,
	// such as one after the other on a single processor.
	wantDistinct = testenv.Rounds(400, 2_000)
)

// Sizes of texts of which a reader must have met one that is smaller and one that is
// larger.
const (
	small = 50
	large = 50_000
)

// fire is what a reader has met.
type fire struct {
	reads    int // complete ones
	distinct int // publications among them
	busy     int // calls that met an update each time they tried
	last     int // publication
	smallest int
	largest  int
}

// under reads in a tight loop until it has seen enough. Whatever it reads must be a
// publication that is not older than the one before; the only error that is allowed
// is busy.
func under(t *testing.T, read readFunc, busy error) fire {
	t.Helper()
	var (
		f           = fire{last: -1, smallest: math.MaxInt}
		publishedAt uint64
		start       = time.Now()
	)
	for f.reads < wantReads || f.last < wantUpdates || f.distinct < wantDistinct || f.smallest > small || f.largest < large {
		if f.reads%1024 == 0 || f.busy%1024 == 1 {
			require.Less(t, time.Since(start), 6*time.Minute, "%+v", f)
		}
		// With a single processor a writer in this process would wait for it long.
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
			require.Failf(t, "timestamps are no cache key", "%d at %d, %d at %d",
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

func TestUnderFireFromChild(t *testing.T) {
	for name, test := range map[string]struct {
		read func(t *testing.T, pid int) readFunc
		busy error
	}{
		"our reader":      {func(t *testing.T, pid int) readFunc { return ourReader(t, open(t, pid)) }, reader.ErrBusy},
		"official reader": {officialReader, processcontext.ErrConcurrentUpdate},
	} {
		t.Run(name, func(t *testing.T) {
			child := start(t, roleIncessant)
			child.Expect("published")
			read := test.read(t, child.PID())
			child.Send("go")
			f := under(t, read, test.busy)
			last, err := strconv.Atoi(child.Ask("stop"))
			require.NoError(t, err)
			assert.GreaterOrEqual(t, last, f.last, "a publication that has not been published")
			// Now that it is quiet, the last one is there to stay.
			o, err := read()
			require.NoError(t, err)
			n, err := numberOf(o)
			require.NoError(t, err)
			assert.Equal(t, last, n)
			child.Done()
		})
	}
}

func TestUnderFireInOneProcess(t *testing.T) {
	pub, err := resourcepublisher.NewPublisher(numbered(0))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pub.Shutdown(context.Background())) })
	var (
		stop atomic.Bool
		last int
		done = make(chan error)
	)
	go func() {
		var err error
		last, err = updateUntil(&stop, pub)
		done <- err
	}()
	stopped := func() error {
		stop.Store(true)
		return <-done
	}
	defer func() {
		if !stop.Load() {
			_ = stopped()
		}
	}()

	f := under(t, ourReader(t, open(t, os.Getpid())), reader.ErrBusy)
	require.NoError(t, stopped())
	assert.GreaterOrEqual(t, last, f.last)
}
