// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"encoding/hex"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
)

// cgoChild is a child process that runs the program testdata/cgo.
type cgoChild struct {
	*childproc.Child
	*foreignReader
	// kind is the carrier in which readers must find the spans.
	kind reader.CarrierKind
}

func startCgo(t *testing.T, exe, carriers string, kind reader.CarrierKind) *cgoChild {
	t.Helper()
	child := childproc.Start(t, "", func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args = exe, append([]string{exe}, strings.Fields(carriers)...)
		cmd.Env = append(cmd.Env, "GOMAXPROCS=4")
	})
	child.Ask("who is it") // answered when the child is ready
	return &cgoChild{child, openForeign(t, child.PID()), kind}
}

// cgoIdentity identifies the thread and the goroutine that answered, and the span that must be
// published for them.
type cgoIdentity struct {
	tid  int
	goid uint64
	span [8]byte
}

func (c *cgoChild) ask(t *testing.T, order string) (is cgoIdentity) {
	t.Helper()
	said := c.Ask("%s", order)
	var span string
	_, err := fmt.Sscan(said, &is.tid, &is.goid, &span)
	require.NoError(t, err, said)
	_, err = hex.Decode(is.span[:], []byte(span))
	require.NoError(t, err, said)
	return is
}

// shows reads the threads repeatedly until one has been seen in the span often enough, and checks
// that no other span is published. A goroutine that is not locked to its thread may move to a
// thread that has published nothing yet, where readers cannot find it. refresh is the command that
// publishes the span there, or empty if the goroutine is locked.
func (c *cgoChild) shows(t *testing.T, is cgoIdentity, refresh string) {
	t.Helper()
	seen, enough := 0, testenv.Rounds(5, 20)
	for end := time.Now().Add(testenv.Patience); seen < enough && time.Now().Before(end); {
		if refresh != "" {
			c.ask(t, refresh)
		}
		if c.showsNow(t, is) {
			seen++
		}
	}
	require.Equal(t, enough, seen, "not seen")
}

// showsNow reads the threads once, and reports whether one of them is in the span. If the goroutine
// seems to be on several threads, because it moved during the read, showsNow stops the process and
// reads again.
func (c *cgoChild) showsNow(t *testing.T, is cgoIdentity) (seen bool) {
	t.Helper()
	threads, err := c.Threads(t.Context())
	require.NoError(t, err)
	if inSpan(threads) > 1 {
		c.Stop()
		threads, err = c.Threads(t.Context())
		require.NoError(t, err)
		c.Continue()
	}
	require.LessOrEqual(t, inSpan(threads), 1, "one goroutine was found on two threads")
	for _, thread := range threads {
		if thread.Span == nil {
			continue
		}
		require.Equal(t, is.span, thread.Span.SpanID)
		require.Equal(t, is.goid, thread.Goroutine)
		require.Equal(t, c.kind, thread.Span.Carrier)
		require.True(t, thread.Span.Proven)
		if is.tid != 0 {
			require.Equal(t, is.tid, thread.TID)
		}
		seen = true
	}
	return seen
}

func inSpan(threads []reader.Thread) (n int) {
	for _, thread := range threads {
		if thread.Span != nil {
			n++
		}
	}
	return n
}

// showsNothing reads the threads repeatedly, and checks that none is in a span.
func (c *cgoChild) showsNothing(t *testing.T) {
	t.Helper()
	for range testenv.Rounds(10, 50) {
		require.False(t, c.showsNow(t, cgoIdentity{}))
	}
}

// TestCgo checks that spans are published before, during and after calls of C functions, and on
// threads created by C that call back into Go.
func TestCgo(t *testing.T) {
	exe := programs.Build(t, programs.Cgo, ".", "./testdata/cgo")
	for carriers, kind := range map[string]reader.CarrierKind{
		"threads": reader.ThreadSlots, "goroutines": reader.GoroutineTable, "record": reader.GoroutineRecord,
	} {
		t.Run(carriers, func(t *testing.T) {
			for _, locked := range []bool{false, true} {
				t.Run(fmt.Sprintf("locked=%t", locked), func(t *testing.T) {
					testCallsOfC(t, startCgo(t, exe, carriers, kind), locked)
				})
			}
			t.Run("called back", func(t *testing.T) { testCallback(t, startCgo(t, exe, carriers, kind)) })
		})
	}
}

func testCallsOfC(t *testing.T, c *cgoChild, locked bool) {
	refresh := "refresh"
	if locked {
		c.ask(t, "lock")
		refresh = ""
	}
	for _, order := range []string{"sleep in C", "spin in C"} {
		is := c.ask(t, "start")
		if !locked {
			is.tid = 0 // the goroutine may move to another thread
		}
		c.shows(t, is, refresh)
		during := false
		for try := 0; try < 10 && !during; try++ {
			in := c.ask(t, order)
			require.Equal(t, is.goid, in.goid)
			if locked {
				require.Equal(t, is.tid, in.tid)
			}
			during = c.showsNow(t, in)
			for range testenv.Rounds(10, 50) {
				require.Equal(t, during, c.showsNow(t, in), "the goroutine stays in C")
			}
			if locked {
				require.True(t, during)
			}
			assert.Equal(t, is.goid, c.ask(t, "leave C").goid)
			c.shows(t, is, refresh)
		}
		require.True(t, during, "the goroutine changed threads on its way to C, each time")
		c.ask(t, "end")
		c.showsNothing(t)
		c.ask(t, order)
		c.showsNothing(t)
		c.ask(t, "leave C")
		c.showsNothing(t)
	}
	c.Done()
}

func testCallback(t *testing.T, c *cgoChild) {
	for range 2 {
		var tid int
		_, err := fmt.Sscan(c.Ask("C thread"), &tid)
		require.NoError(t, err)
		c.showsNothing(t)
		for range 3 {
			is := c.ask(t, "call back")
			require.Equal(t, tid, is.tid)
			c.showsNothing(t)
			is = c.ask(t, "called: start")
			require.Equal(t, tid, is.tid)
			c.shows(t, is, "")
			c.ask(t, "called: end")
			c.showsNothing(t)
			require.Equal(t, strconv.Itoa(tid), c.Ask("called: return"))
			c.showsNothing(t)
		}
		require.Equal(t, "0", c.Ask("end C thread"))
		c.showsNothing(t)
	}
	c.Done()
}
