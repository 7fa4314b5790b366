// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader_test

import (
	"context"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
)

// spell calls then with a stack that spells a number in base 4. The last digit is outermost.
func spell(number uint64, then func()) {
	if number == 0 {
		then()
		return
	}
	switch number % 4 {
	case 0:
		digit0(number/4, then)
	case 1:
		digit1(number/4, then)
	case 2:
		digit2(number/4, then)
	case 3:
		digit3(number/4, then)
	}
}

//go:noinline
func digit0(rest uint64, then func()) { spell(rest, then); runtime.KeepAlive(rest) }

//go:noinline
func digit1(rest uint64, then func()) { spell(rest, then); runtime.KeepAlive(rest) }

//go:noinline
func digit2(rest uint64, then func()) { spell(rest, then); runtime.KeepAlive(rest) }

//go:noinline
func digit3(rest uint64, then func()) { spell(rest, then); runtime.KeepAlive(rest) }

// deepen makes the stack grow, so that the runtime moves it.
//
//go:noinline
func deepen(depth int) {
	var space [256]byte
	if depth > 0 {
		deepen(depth - 1)
	}
	runtime.KeepAlive(&space)
}

// spelled returns the number that a stack spells, whether it spells all of it, and the innermost of the functions below
// that wait. A goroutine that is interrupted while it spells has only some of the digits on its stack.
func spelled(stack []uint64) (number uint64, rest string, ok bool) {
	place := uint64(1)
	const pkg = "github.com/otelctx/otelctx/reader_test."
	for _, pc := range slices.Backward(stack) {
		name := strings.TrimPrefix(runtime.FuncForPC(uintptr(pc)).Name(), pkg)
		if digit, found := strings.CutPrefix(name, "digit"); found {
			number += uint64(digit[0]-'0') * place
			place *= 4
		}
		ok = ok || strings.HasPrefix(name, "(*churning).live.func") // what spell calls after the last digit
		if strings.HasPrefix(name, "rests") {
			rest = name
		}
	}
	return number, rest, ok
}

//go:noinline
func restsAsleep(*churning) { time.Sleep(50 * time.Microsecond) }

//go:noinline
func restsReceiving(c *churning) { <-c.ticks }

//go:noinline
func restsSelecting(c *churning) {
	select {
	case <-c.ticks:
	case <-c.never:
	}
}

// restsReasons maps the functions that wait to their wait reasons.
var restsReasons = map[string]string{"restsAsleep": "sleep", "restsReceiving": "chan receive", "restsSelecting": "select"}

// churning keeps goroutines starting, waiting and ending, so that the runtime reuses their gs and stacks. The stack of
// each spells its id.
type churning struct {
	ticks, never chan struct{}
	end          chan struct{}
	tracer       *sdktrace.TracerProvider
	running      sync.WaitGroup
}

func (c *churning) start(goroutines int) {
	c.ticks, c.never, c.end = make(chan struct{}), make(chan struct{}), make(chan struct{})
	c.running.Go(func() {
		for {
			select {
			case c.ticks <- struct{}{}:
				time.Sleep(5 * time.Microsecond)
			case <-c.end:
				close(c.ticks)
				return
			}
		}
	})
	for i := range goroutines {
		c.running.Go(func() {
			for n := i; ; n++ {
				select {
				case <-c.end:
					return
				default:
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					c.live(n)
				}()
				<-done
			}
		})
	}
}

// live is what a goroutine does: it waits a few times, in a span or not, and moves its stack.
func (c *churning) live(n int) {
	id := goroutineID()
	if n%3 == 0 {
		_, span := c.tracer.Tracer("").Start(context.Background(), "churn")
		defer span.End()
	}
	spell(id, func() {
		for i := range 3 {
			if n%4 == 0 {
				deepen(8 << i)
			}
			switch (n + i) % 3 {
			case 0:
				restsAsleep(c)
			case 1:
				restsReceiving(c)
			case 2:
				restsSelecting(c)
			}
		}
	})
}

// TestStacksUnderChurn checks that Goroutines never returns the stack of another goroutine, or a mix of two, while
// goroutines end and start all the time and the garbage collector moves stacks. Each stack spells the id of its
// goroutine. It also checks that every process that has just been opened gets stacks.
func TestStacksUnderChurn(t *testing.T) {
	tp, _ := publishing(t)
	c := &churning{tracer: tp}
	c.start(64)
	defer c.running.Wait()
	defer close(c.end)
	c.running.Go(func() {
		for {
			select {
			case <-c.end:
				return
			case <-time.After(time.Millisecond):
				runtime.GC()
			}
		}
	})
	stacks, opened, calls := 0, 0, 0
	ids := map[uint64]bool{}
	var torn, lost int
	// read reads all goroutines, checks their stacks, and returns the number of those that are complete.
	read := func(p *reader.Process) (complete int) {
		refs, err := p.AllGoroutines(t.Context())
		require.NoError(t, err)
		found, err := p.Goroutines(t.Context(), refs, reader.GoroutineOptions{Stacks: true, Spans: true})
		require.NoError(t, err)
		torn, lost = torn+found.Torn, lost+found.Lost
		for i := range found.Goroutines {
			g := &found.Goroutines[i]
			if g.StackErr != nil || len(g.Stack) == 0 {
				continue
			}
			complete++
			number, rest, ok := spelled(g.Stack)
			if !ok {
				continue
			}
			stacks++
			ids[g.ID] = true
			require.Equal(t, g.ID, number, "the stack spells the id of another goroutine")
			if g.State == reader.GoroutineWaiting && rest != "" && (g.WaitReason == "sleep" || g.WaitReason == "select" || g.WaitReason == "chan receive") {
				require.Equal(t, restsReasons[rest], g.WaitReason)
			}
		}
		return complete
	}
	const opens = 40
	for want := testenv.Rounds(5_000, 200_000); stacks < want || opened < opens; {
		p, err := reader.Open(os.Getpid())
		require.NoError(t, err)
		opened++
		require.Positive(t, read(p), "the first call has no stacks")
		for range 100 {
			read(p)
			calls++
			if stacks >= want || opened < opens && stacks >= want*opened/opens {
				break
			}
		}
		require.NoError(t, p.Close())
	}
	t.Logf("%d stacks of %d goroutines in %d calls of %d processes; %d readings were torn, %d goroutines changed each time", stacks, len(ids), calls+opened, opened, torn, lost)
	assert.Greater(t, len(ids), stacks/100, "goroutines end and start")
}
