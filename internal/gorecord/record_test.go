// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
)

func TestAvailable(t *testing.T) {
	needRecords(t)
	refused := errors.New("refused")
	known := goruntime.Calibrate()
	for _, f := range goruntime.Facts() {
		err := Available(known.Without(refused, f))
		if f == goruntime.LabelList || f == goruntime.GLabels {
			assert.ErrorIs(t, err, refused, f)
		} else {
			assert.NoError(t, err, f)
		}
	}
	assert.ErrorIs(t, Available(known.Without(refused)), refused)
}

// manyLabels returns keys and values of n labels.
func manyLabels(n int) (kvs []string) {
	for i := range n {
		kvs = append(kvs, fmt.Sprintf("key%02d", i), fmt.Sprint("value", i))
	}
	return kvs
}

func TestUsersLabels(t *testing.T) {
	needRecords(t)
	tests := map[string][]string{
		"none":               {},
		"one before":         {"a", "1"},
		"one between":        {"t", "1"},
		"one behind":         {"u", "1"},
		"all around":         {"a", "1", "span_ie", "2", "spanid", "3", "trace_ie", "4", "z", ""},
		"empty key":          {"", "value"},
		"prefixes of ours":   {"span", "1", "span_", "2", "span_id_", "3", "trace", "4", "trace_id_", "5"},
		"eight":              manyLabels(8),
		"nine":               manyLabels(9),
		"ten":                manyLabels(10),
		"forty":              manyLabels(40),
		"span_id is ours":    {"a", "1", "span_id", "theirs", "z", "2"},
		"trace_id is ours":   {"trace_id", "theirs"},
		"both are ours":      {"span_id", "theirs", "trace_id", "theirs", "zz", "9"},
		"more with ours too": append(manyLabels(9), "span_id", "theirs", "trace_id", "theirs"),
	}
	for name, user := range tests {
		t.Run(name, func(t *testing.T) {
			apart(func() {
				setUser(user...)
				before := goruntime.Labels()
				// Labels with our keys are not there while a span is.
				var kept []string
				for i := 0; i < len(user); i += 2 {
					if user[i] != "span_id" && user[i] != "trace_id" {
						kept = append(kept, user[i:i+2]...)
					}
				}
				outer := begin(1)
				assertShows(t, 1, kept...)
				inner := begin(2)
				assertShows(t, 2, kept...)
				inner.End()
				assertShows(t, 1, kept...)
				outer.End()
				assert.Equal(t, before, goruntime.Labels(), "the very same")
				assertShows(t, 0, user...)
			})
		})
	}
}

// Everything that costs memory is one object of at most 512 bytes, unless the user has
// more labels than profilers read.
func TestAllocations(t *testing.T) {
	needRecords(t)
	for _, tt := range []struct {
		users   int
		objects float64
		bytes   uint64
	}{
		{0, 1, 192}, {1, 1, 512}, {8, 1, 512}, {9, 2, 1024}, {12, 2, 1024},
	} {
		t.Run(fmt.Sprintf("users=%d", tt.users), func(t *testing.T) {
			apart(func() {
				setUser(manyLabels(tt.users)...)
				if tt.users == 0 {
					goruntime.SetLabels(nil)
				}
				assert.Equal(t, tt.objects, testing.AllocsPerRun(1000, func() { begin(1).End() }))
				assert.Equal(t, 2*tt.objects, testing.AllocsPerRun(1000, func() {
					outer := begin(1)
					begin(2).End()
					outer.End()
				}))
				assert.Zero(t, testing.AllocsPerRun(1000, func() { Current() }))
				const runs = 1000
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for range runs {
					begin(1).End()
				}
				runtime.ReadMemStats(&after)
				// The runtime allocates too, for a collector that begins: less than 8 bytes for each.
				assert.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)/runs, tt.bytes+8)
			})
		})
	}
}

func TestNesting(t *testing.T) {
	needRecords(t)
	apart(func() {
		setUser("user", "x")
		var open []*Record
		for depth := range uint64(3 * maxDepth) {
			open = append(open, begin(depth+1))
			assertShows(t, depth+1, "user", "x")
		}
		// The inner ones lead back one by one, as far as the chain goes.
		for depth := uint64(3 * maxDepth); depth > 0; depth-- {
			open[depth-1].End()
			if depth > 2*maxDepth+1 {
				assertShows(t, depth-1, "user", "x")
			} else {
				assertShows(t, 0, "user", "x")
			}
		}
		assertShows(t, 0, "user", "x")
	})
}

func TestOutOfOrder(t *testing.T) {
	needRecords(t)
	apart(func() {
		before := goruntime.Labels()
		a, b, c := begin(1), begin(2), begin(3)
		b.End()
		assertShows(t, 3)
		c.End()
		assertShows(t, 1)
		a.End()
		assert.Equal(t, before, goruntime.Labels())

		a, b, c = begin(1), begin(2), begin(3)
		a.End()
		b.End()
		assertShows(t, 3)
		c.End()
		assert.Equal(t, before, goruntime.Labels())

		// One that is begun on top of one that is over leads back to what that did.
		a, b = begin(1), begin(2)
		apart(b.End)
		assert.Zero(t, Current(), "it is over, on this goroutine too")
		c = begin(3)
		assertShows(t, 3)
		c.End()
		assertShows(t, 1)
		a.End()
		assert.Equal(t, before, goruntime.Labels())
	})
}

func TestEndTwice(t *testing.T) {
	needRecords(t)
	apart(func() {
		a, b := begin(1), begin(2)
		b.End()
		b.End()
		assertShows(t, 1)
		c := begin(3)
		b.End()
		assertShows(t, 3)
		c.End()
		a.End()
		a.End()
		assertShows(t, 0)
		(*Record)(nil).End()
	})
}

func TestEndOnAnotherGoroutine(t *testing.T) {
	needRecords(t)
	apart(func() {
		setUser("user", "x")
		a, b := begin(1), begin(2)
		apart(func() {
			setUser("other", "y")
			other := begin(4)
			b.End()
			assertShows(t, 4, "other", "y")
			other.End()
			assertShows(t, 0, "other", "y")
		})
		assert.Zero(t, Current())
		assert.False(t, b.Valid())
		assert.True(t, a.Valid())
		// Its labels stay until the goroutine next does something.
		begin(3).End()
		assertShows(t, 1, "user", "x")
		// However often that happens, what is still open is led back to.
		for range 3 * maxDepth {
			apart(begin(4).End)
		}
		begin(5).End()
		assertShows(t, 1, "user", "x")
		a.End()
		assertShows(t, 0, "user", "x")
	})
}

// Who ends a span that was begun elsewhere does not go back to what was visible there.
func TestEndAsGuest(t *testing.T) {
	needRecords(t)
	apart(func() {
		setUser("user", "x")
		a, b := begin(1), begin(2)
		inherits := make(chan struct{})
		go func() {
			defer close(inherits)
			assertShows(t, 2, "user", "x")
			b.EndAsGuest()
			assertShows(t, 0, "user", "x")
		}()
		<-inherits
		assert.False(t, b.Valid())
		c := begin(3)
		apart(func() {
			setUser("other", "y")
			saved := c.Attach(nil)
			c.EndAsGuest()
			assertShows(t, 0, "other", "y")
			saved.Detach()
			assertShows(t, 0, "other", "y")
			own := begin(4)
			a.EndAsGuest()
			assertShows(t, 4, "other", "y")
			own.End()
		})
	})
}

func TestInherited(t *testing.T) {
	needRecords(t)
	apart(func() {
		setUser("user", "x")
		a := begin(1)
		steps := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			assertShows(t, 1, "user", "x")
			child := begin(2)
			assertShows(t, 2, "user", "x")
			child.End()
			assertShows(t, 1, "user", "x")
			child = begin(3)
			steps <- struct{}{}
			<-steps
			// What it was started in is over.
			assertShows(t, 3, "user", "x")
			child.End()
			assertShows(t, 0, "user", "x")
		}()
		idle, begun := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(idle)
			assertShows(t, 1, "user", "x")
			close(begun)
			<-done
			assert.Zero(t, Current(), "it is over for those too that do nothing")
			begin(5).End()
			assertShows(t, 0, "user", "x")
		}()
		<-steps
		<-begun
		a.End()
		steps <- struct{}{}
		<-done
		<-idle
		assertShows(t, 0, "user", "x")
	})
}

func TestPprofDo(t *testing.T) {
	needRecords(t)
	apart(func() {
		outside := context.Background()
		pprof.Do(outside, pprof.Labels("do", "outer"), func(ctx context.Context) {
			a := begin(1)
			assertShows(t, 1, "do", "outer")
			pprof.Do(ctx, pprof.Labels("do2", "inner"), func(context.Context) {
				// They replace all of a goroutine's labels.
				assertShows(t, 0, "do", "outer", "do2", "inner")
				b := begin(2)
				assertShows(t, 2, "do", "outer", "do2", "inner")
				b.End()
				assertShows(t, 0, "do", "outer", "do2", "inner")
			})
			assertShows(t, 0, "do", "outer")
			c := begin(3)
			assertShows(t, 3, "do", "outer")
			c.End()
			assertShows(t, 0, "do", "outer")
			a.End()
			assertShows(t, 0, "do", "outer")
		})
		assertShows(t, 0)
	})
}

// What runtime/pprof says of a goroutine in a span, and of one whose span is over.
func TestGoroutineProfile(t *testing.T) {
	needRecords(t)
	apart(func() {
		setUser("user", "x")
		traceID, spanID := texts(77)
		line := fmt.Sprintf(`# labels: {"span_id":%q, "trace_id":%q, "user":"x"}`, spanID, traceID)
		r := begin(77)
		assert.Contains(t, goroutineProfile(t), line)
		r.End()
		profile := goroutineProfile(t)
		assert.NotContains(t, profile, spanID)
		assert.Contains(t, profile, `# labels: {"user":"x"}`)
	})
}

func goroutineProfile(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	return b.String()
}

func TestAttach(t *testing.T) {
	needRecords(t)
	apart(func() {
		setUser("user", "x")
		r := begin(1)
		inherits := make(chan struct{})
		go func() {
			defer close(inherits)
			before := goruntime.Labels()
			saved := r.Attach(nil)
			assert.Equal(t, before, goruntime.Labels(), "it shows it already")
			saved.Detach()
			assertShows(t, 1, "user", "x")
		}()
		<-inherits
		apart(func() {
			// Labels of its own: without, with one, with too many, with ours.
			for _, user := range [][]string{nil, {"other", "y"}, manyLabels(20), {"span_id", "z"}} {
				setUser(user...)
				if user == nil {
					goruntime.SetLabels(nil)
				}
				before := goruntime.Labels()
				saved := r.Attach(nil)
				if len(user) > 0 && user[0] == "span_id" {
					assertShows(t, 1)
				} else {
					assertShows(t, 1, user...)
				}
				again := r.Attach(nil)
				again.Detach()
				inner := begin(2)
				assert.EqualValues(t, 2, Current())
				assert.Zero(t, testing.AllocsPerRun(10, func() { r.Attach(nil).Detach() }), "these labels are known")
				inner.End()
				assert.EqualValues(t, 1, Current())
				saved.Detach()
				assert.Equal(t, before, goruntime.Labels())
				assertShows(t, 0, user...)
			}
			// In a span of its own.
			goruntime.SetLabels(nil)
			own := begin(3)
			saved := r.Attach(nil)
			assertShows(t, 1)
			saved.Detach()
			assertShows(t, 3)
			saved = r.Attach(nil)
			apart(own.End)
			saved.Detach()
			assertShows(t, 0)
		})
		r.End()
		assertShows(t, 0, "user", "x")
	})
}

// The end of a span reaches all goroutines that it is attached on.
func TestEndOfAttached(t *testing.T) {
	needRecords(t)
	apart(func() {
		r := begin(1)
		ended := make(chan struct{})
		var attached, done []chan struct{}
		for i := range 10 {
			attached = append(attached, make(chan struct{}))
			done = append(done, make(chan struct{}))
			go func() {
				defer close(done[i])
				setUser("worker", strconv.Itoa(i%5))
				saved := r.Attach(nil)
				assertShows(t, 1, "worker", strconv.Itoa(i%5))
				close(attached[i])
				<-ended
				assert.Zero(t, Current())
				saved.Detach()
				assertShows(t, 0, "worker", strconv.Itoa(i%5))
				// Too late.
				r.Attach(nil).Detach()
				assertShows(t, 0, "worker", strconv.Itoa(i%5))
				saved = r.Attach(nil)
				assertShows(t, 0, "worker", strconv.Itoa(i%5))
				saved.Detach()
			}()
			<-attached[i]
		}
		r.End()
		close(ended)
		for i := range done {
			<-done[i]
		}
	})
}

// Goroutines without end, each with labels of its own, cost a span a bounded number of
// records.
func TestAttachIsBounded(t *testing.T) {
	needRecords(t)
	apart(func() {
		r := begin(1)
		shownOn := 0
		apart(func() {
			for i := range 1000 {
				setUser("worker", strconv.Itoa(i))
				saved := r.Attach(nil)
				if Current() == 1 {
					shownOn++
				}
				saved.Detach()
				assertShows(t, 0, "worker", strconv.Itoa(i))
			}
		})
		assert.Equal(t, maxAttached, shownOn)
		records := 0
		for at := r; at != nil; at = at.next.Load() {
			records++
		}
		assert.Equal(t, maxAttached+1, records)
		r.End()
		for at := r; at != nil; at = at.next.Load() {
			assert.False(t, at.Valid())
		}
	})
}

// Copies of our labels, which keep the very same strings, are still the user's.
func TestCopiesOfOurLabels(t *testing.T) {
	needRecords(t)
	apart(func() {
		r := begin(1)
		ours := shown()
		var kvs []string
		for _, l := range ours {
			kvs = append(kvs, l.Key, l.Value)
		}
		setUser(kvs...)
		assert.Zero(t, Current())
		assert.Nil(t, of(goruntime.Labels()))
		inner := begin(2)
		assertShows(t, 2)
		inner.End()
		assert.Equal(t, ours, shown())
		r.End()
		assert.Equal(t, ours, shown(), "it was not installed any more")
	})
}

func FuzzOf(f *testing.F) {
	f.Add([]byte("a=1 b=2"), uint8(3), uint64(1))
	f.Add([]byte("span_id=1 trace_id=2 span_id=3"), uint8(0), uint64(0))
	f.Add([]byte(strings.Repeat("x=y ", 30)), uint8(200), ^uint64(0))
	f.Fuzz(func(t *testing.T, text []byte, bits uint8, id uint64) {
		needRecords(t)
		apart(func() {
			// A record whose labels the user's are taken from, in part.
			origin := begin(id)
			var kvs []string
			for i, field := range bytes.Fields(text) {
				key, value, _ := strings.Cut(string(field), "=")
				if (int(bits)+i)%3 == 0 {
					l := shown()[i%len(shown())]
					key = l.Key
					if bits&1 == 0 {
						value = l.Value
					}
				}
				kvs = append(kvs, key, value)
			}
			ctx := context.Background()
			for half := range 2 {
				n := len(kvs) / 4 * 2
				part := kvs[:n]
				if half == 1 {
					part = kvs[n:]
				}
				ctx = pprof.WithLabels(ctx, pprof.Labels(part...))
				pprof.SetGoroutineLabels(ctx)
				if of(goruntime.Labels()) != nil || Current() != 0 {
					t.Fatalf("labels %q are taken for a record", part)
				}
			}
			before := goruntime.Labels()
			r := begin(id ^ 1)
			if of(goruntime.Labels()) != r {
				t.Fatal("a record is not known")
			}
			var user, all []string
			pprof.ForLabels(ctx, func(key, value string) bool {
				if key != "span_id" && key != "trace_id" {
					user = append(user, key, value)
				}
				return true
			})
			all = append(all, user...)
			if id^1 == 0 {
				// Nothing but its own tests begins a span without an id.
				return
			}
			assertShows(t, id^1, all...)
			r.End()
			if goruntime.Labels() != before {
				t.Fatal("the user's labels are not back")
			}
			origin.End()
		})
	})
}

func TestRef(t *testing.T) {
	needRecords(t)
	apart(func() {
		var ref Ref
		assert.Nil(t, ref.Get())
		ref.Get().End()
		r := begin(1)
		ref.Put(r)
		assert.Same(t, r, ref.Get())
		assert.True(t, ref.Get().Shows(1))
		assert.False(t, ref.Get().Shows(2))
		ref.Put(nil)
		assert.Nil(t, ref.Get())
		assert.False(t, ref.Get().Shows(0))
		r.End()
	})
}

// Spans of one trace share its text where that saves memory, with whatever labels and
// attributes, and it stays what it is when the span that it was made for is over and gone.
func TestSharedTrace(t *testing.T) {
	needRecords(t)
	const high, low = 0x0102030405060708, 0x090a0b0c0d0e0f10
	const trace, other = "0102030405060708090a0b0c0d0e0f10", "0102030405060708090a0b0c0d0e0f11"
	labels := func() map[string]string {
		got := map[string]string{}
		for _, l := range shown() {
			got[l.Key] = l.Value
		}
		return got
	}
	small, large := attributesOf("app", "shop"), attributesOf("app", strings.Repeat("x", 40))
	for name, test := range map[string]struct {
		user         []string
		outer, inner *Attributes
		shared       bool
	}{
		"bare":                      {shared: true},
		"small attributes":          {inner: small, shared: true},
		"outer's attributes":        {outer: small, shared: true},
		"outer's large attributes":  {outer: large, inner: small, shared: true},
		"large attributes":          {inner: large},
		"a user's label":            {user: []string{"u", "1"}},
		"more of them":              {user: manyLabels(9)},
		"labels and attributes":     {user: []string{"u", "1"}, outer: small, inner: small},
		"more labels and attribute": {user: manyLabels(9), inner: small},
	} {
		t.Run(name, func(t *testing.T) {
			apart(func() {
				setUser(test.user...)
				outer := Begin(high, low, 1, 1, test.outer)
				own := outer.traceIDText()
				inner := Begin(high, low, 2, 1, test.inner)
				assert.Equal(t, trace, inner.traceIDText())
				assert.Equal(t, test.shared, unsafe.StringData(own) == unsafe.StringData(inner.traceIDText()))
				assert.Equal(t, trace, labels()["trace_id"])
				assert.Equal(t, "0000000000000002", labels()["span_id"])
				strange := Begin(high, low+1, 3, 1, test.inner)
				assert.Equal(t, other, labels()["trace_id"], "another trace")
				strange.End()
				detach := outer.Attach(test.inner)
				assert.Equal(t, trace, labels()["trace_id"], "attached")
				detach.Detach()

				outer.End()
				for range 3 {
					runtime.GC()
				}
				assert.Equal(t, trace, labels()["trace_id"])
				innermost := Begin(high, low, 4, 1, nil)
				assert.Equal(t, trace, labels()["trace_id"])
				innermost.End()
				inner.End()
				assert.NotContains(t, labels(), "trace_id")
				assert.Len(t, labels(), len(test.user)/2)
			})
		})
	}
	apart(func() {
		setUser(manyLabels(1 << 16)...)
		outer := Begin(high, low, 1, 1, nil)
		Begin(high, low, 2, 1, nil)
		assert.Equal(t, trace, labels()["trace_id"])
		setUser()
		outer.Attach(nil)
		assert.Equal(t, trace, labels()["trace_id"], "of one of more labels than can be counted")
		goruntime.SetLabels(nil)
	})
	apart(func() {
		texts := map[*byte]bool{}
		for i := range uint64(3 * maxDepth) {
			r := Begin(high, low, i+1, 1, nil)
			texts[unsafe.StringData(r.traceIDText())] = true
		}
		assert.Len(t, texts, 3, "one for each chain")
		goruntime.SetLabels(nil)
	})
}
