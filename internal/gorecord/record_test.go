// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
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

// If there is room, the user's labels come before ours. After hideLabels, only the user's labels
// are visible, or none if ours come first.
func TestUsersLabels(t *testing.T) {
	needRecords(t)
	for name, tt := range map[string]struct {
		user []string
		// first is true if our labels come first, because the user's labels leave no room for them.
		first bool
	}{
		"none":             {nil, false},
		"one":              {[]string{"a", "1"}, false},
		"all around":       {[]string{"a", "1", "span_ie", "2", "spanid", "3", "trace_ie", "4", "z", ""}, false},
		"empty key":        {[]string{"", "value"}, false},
		"eight":            {manyLabels(8), false},
		"nine":             {manyLabels(9), true},
		"forty":            {manyLabels(40), true},
		"span_id is ours":  {[]string{"a", "1", "span_id", "theirs", "z", "2"}, false},
		"trace_id is ours": {[]string{"trace_id", "theirs"}, false},
		"many with ours":   {append(manyLabels(9), "span_id", "theirs", "trace_id", "theirs"), true},
	} {
		t.Run(name, func(t *testing.T) {
			apart(func() {
				if tt.user != nil {
					setUser(tt.user...)
				}
				before := goruntime.Labels()
				r := begin(1)
				assertShows(t, 1, kept(tt.user)...)
				assert.Same(t, r, installed())
				labels, over := User()
				assert.Equal(t, before, labels)
				assert.Same(t, r, over)
				assert.True(t, r.HasLabels(before))
				at := 0
				if !tt.first {
					at = len(shown()) - 2
				}
				assert.Equal(t, "span_id", shown()[at].Key)
				assert.Equal(t, "trace_id", shown()[at+1].Key)

				// An ended record is still recognized as ours.
				r.End(true)
				assert.Same(t, r, installed())
				if tt.first {
					assert.Empty(t, shown(), "the list may only become shorter")
				} else {
					assertShows(t, 0, kept(tt.user)...)
				}
				next := begin(2)
				assertShows(t, 2, kept(tt.user)...)
				next.End(false)
				assertShows(t, 2, kept(tt.user)...)
				Restore(user())
				assert.Nil(t, installed())
				assert.Equal(t, before, goruntime.Labels(), "the same object")
				labels, over = User()
				assert.Equal(t, before, labels)
				assert.Nil(t, over)
			})
		})
	}
}

// Variant returns a record with the requested content, and the same record if it is called again
// with the same arguments.
func TestVariant(t *testing.T) {
	needRecords(t)
	apart(func() {
		setUser("user", "x")
		previous := begin(1)
		r := newOf(2, attributesOf("app", "a"))
		assert.Same(t, previous, r.Previous())
		ancestors, dispatcher := r.Ancestors()
		assert.Equal(t, [wire.Ancestors]wire.Ref{1 << 20}, ancestors)
		assert.Zero(t, dispatcher)
		users := user()
		setUser("other", "y")
		other := user()
		setUser("other", "y")
		copied := user()
		require.NotEqual(t, other, copied)
		seen := map[*Record]bool{}
		for name, v := range map[string]*Record{
			"itself":               r.variantIn(attributesOf("app", "a"), users, previous),
			"other attributes":     r.variantIn(attributesOf("app", "b"), users, previous),
			"no attributes":        r.variantIn(nil, users, previous),
			"other labels":         r.variantIn(attributesOf("app", "a"), other, previous),
			"no labels":            r.variantIn(attributesOf("app", "a"), nil, previous),
			"another previous one": r.variantIn(attributesOf("app", "a"), users, newOf(3, nil)),
			"of a variant itself":  r.variantIn(nil, nil, nil).variantIn(nil, nil, nil),
		} {
			assert.Equal(t, name == "itself", v == r, name)
			assert.False(t, seen[v], name)
			seen[v] = true
			assert.Equal(t, r.Ref(), v.Ref())
			assert.True(t, v.valid())
			v.Install()
			assert.Same(t, v, installed())
			var want []string
			if strings.Contains(name, "other labels") {
				want = append(want, "other", "y")
			} else if v.user != nil {
				want = append(want, "user", "x")
			}
			if a := v.Attributes(); a != nil {
				want = append(want, "app", string(a[2:]))
			}
			assertShows(t, 2, want...)
		}
		assert.Same(t, r, r.variantIn(attributesOf("app", "a"), users, nil), "any previous one")
		assert.Same(t, r.variantIn(nil, other, previous), r.variantIn(nil, copied, previous), "equal labels at another place")
		assert.Zero(t, testing.AllocsPerRun(10, func() { r.variantIn(nil, other, previous) }), "the variant must be reused")

		r.End(true)
		for v := range seen {
			assert.False(t, v.valid())
			v.Install()
			_, spanID := texts(2)
			for _, l := range shown() {
				assert.NotEqual(t, spanID, l.Value)
			}
			assert.Nil(t, v.Previous())
		}
		assert.True(t, previous.valid())
	})
	(*Record)(nil).End(true)
	assert.Zero(t, (*Record)(nil).Ref())
}

// A span has at most 64 records that are not retired. A retired record has no labels, and its own
// span is its first ancestor.
func TestVariantsAreBounded(t *testing.T) {
	needRecords(t)
	apart(func() {
		r := begin(1)
		var all []*Record
		for i := range 200 {
			all = append(all, r.variantIn(attributesOf("n", strconv.Itoa(i)), nil, nil))
		}
		chained := 0
		for at := r; at != nil; at = at.variant.Load() {
			chained++
			assert.True(t, at.valid())
		}
		assert.Equal(t, 64, chained)
		for i, v := range all {
			e, _ := v.Ancestors()
			if i < 200-63 {
				assert.False(t, v.valid())
				assert.Empty(t, v.labels.List)
				assert.Equal(t, [wire.Ancestors]wire.Ref{r.ref}, e)
			} else {
				assert.True(t, v.valid())
				assert.Zero(t, e)
			}
		}
		assert.Same(t, all[199], r.variantIn(attributesOf("n", "199"), nil, nil))
		assert.True(t, r.variantIn(attributesOf("n", "5"), nil, nil).valid())
		r.End(false)
		for _, v := range all {
			assert.False(t, v.valid())
		}
	})
}

// A record of an ended span keeps no other record alive. An idle goroutine may keep an inherited
// record forever, but must not keep a chain of records.
func TestEndedRecordsKeepNoOthers(t *testing.T) {
	needRecords(t)
	apart(func() {
		previous := newOf(1, nil)
		other := newOf(2, nil)
		inner := newIn(1, 2, 3, 1, nil, nil, previous)
		inner.variantIn(nil, nil, other)
		inner.Install()
		previousRecords := []weak.Pointer[Record]{weak.Make(previous), weak.Make(other)}
		for range 3 {
			runtime.GC()
		}
		for i, w := range previousRecords {
			require.NotNil(t, w.Value(), "%d: the goroutine returns to this record", i)
		}
		inner.End(false)
		for i, w := range previousRecords {
			for n := 0; w.Value() != nil; n++ {
				require.Less(t, n, 100, "%d is kept alive by an ended record", i)
				runtime.GC()
			}
		}
		runtime.KeepAlive(inner)
	})
}

func TestPointer(t *testing.T) {
	needRecords(t)
	var p Pointer
	assert.Nil(t, p.Load())
	r := newOf(1, nil)
	p.Store(r)
	assert.Same(t, r, p.Load())
	p.Store(nil)
	assert.Nil(t, p.Load())
}

func FuzzOf(f *testing.F) {
	f.Add([]byte("a=1 b=2"), uint8(3), uint64(1))
	f.Add([]byte("span_id=1 trace_id=2 span_id=3"), uint8(0), uint64(0))
	f.Add([]byte(strings.Repeat("x=y ", 30)), uint8(200), ^uint64(0))
	f.Fuzz(func(t *testing.T, text []byte, bits uint8, id uint64) {
		needRecords(t)
		apart(func() {
			// Some of the user's labels are copied from this record.
			origin := begin(id)
			var kvs []string
			for i, field := range bytes.Fields(text) {
				key, value, _ := strings.Cut(string(field), "=")
				if (int(bits)+i)%3 == 0 {
					l := origin.labels.List[i%2]
					key = l.Key
					if bits&1 == 0 {
						value = l.Value
					}
				}
				kvs = append(kvs, key, value)
			}
			ctx := context.Background()
			for _, part := range [][]string{kvs[:len(kvs)/4*2], kvs[len(kvs)/4*2:]} {
				ctx = pprof.WithLabels(ctx, pprof.Labels(part...))
				pprof.SetGoroutineLabels(ctx)
				if installed() != nil {
					t.Fatalf("labels %q are taken for a record", part)
				}
			}
			before := goruntime.Labels()
			r := beginWith(id|1, nil)
			var users []string
			pprof.ForLabels(ctx, func(key, value string) bool {
				users = append(users, key, value)
				return true
			})
			assertShows(t, id|1, kept(users)...)
			for _, withdraw := range []bool{false, true} {
				if installed() != r {
					t.Fatal("a record is not recognized")
				}
				r.End(withdraw)
			}
			if installed() != r || user() != before {
				t.Fatal("an ended record is not recognized")
			}
		})
	})
}
