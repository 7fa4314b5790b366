// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// attributesOf returns attributes with these keys and values, by turns.
func attributesOf(kvs ...string) *Attributes {
	var all []Attribute
	for i := 0; i < len(kvs); i += 2 {
		all = append(all, Attribute{Index: uint8(i / 2), Key: kvs[i], Value: kvs[i+1]})
	}
	return NewAttributes(all)
}

func beginWith(id uint64, a *Attributes) *Record { return Begin(^id, id*3, id, 1, a) }

// encodedOf returns attributes as OTEP 4947 has them.
func encodedOf(values ...string) string {
	var b strings.Builder
	for i, v := range values {
		b.WriteByte(byte(i))
		b.WriteByte(byte(len(v)))
		b.WriteString(v)
	}
	return b.String()
}

func TestNewAttributes(t *testing.T) {
	assert.Nil(t, NewAttributes(nil))
	assert.Nil(t, NewAttributes(nil).Encoded())
	long := strings.Repeat("x", 300)
	for name, tt := range map[string]struct {
		attributes *Attributes
		want       string
	}{
		"empty value": {attributesOf("a", ""), "\x00\x00"},
		"some":        {attributesOf("a", "1", "b", "23"), "\x00\x011\x01\x0223"},
		"cut":         {attributesOf("a", long), "\x00\xff" + long[:255]},
		"all that fit": {
			attributesOf("a", long, "b", long, "c", long, "d", "1"),
			"\x00\xff" + long[:255] + "\x01\xff" + long[:255] + "\x03\x011",
		},
		"to the last byte": {
			attributesOf("a", long, "b", long, "c", long[:96], "d", ""),
			"\x00\xff" + long[:255] + "\x01\xff" + long[:255] + "\x02\x60" + long[:96],
		},
	} {
		t.Run(name, func(t *testing.T) {
			encoded := tt.attributes.Encoded()
			assert.Equal(t, tt.want, string(encoded))
			assert.LessOrEqual(t, len(encoded), 612)
			assert.Zero(t, cap(encoded)%8)
		})
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		s    string
		size int
		want string
	}{
		{"", 3, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"aé", 2, "a"},
		{"aé", 3, "aé"},
		{"éé", 3, "é"},
		{"\U0001F600", 3, "\U0001F600"[:3]},
		{"a\U0001F600", 4, "a"},
		{"a\U0001F600", 5, "a\U0001F600"},
		{"\x80\x80\x80\x80\x80\x80", 5, "\x80\x80\x80\x80\x80"},
	} {
		assert.Equal(t, tt.want, Cut(tt.s, tt.size), "%q to %d", tt.s, tt.size)
	}
}

// kept returns the labels of a user that stay beside ours.
func kept(user []string) (kvs []string) {
	for i := 0; i < len(user); i += 2 {
		if user[i] != "span_id" && user[i] != "trace_id" {
			kvs = append(kvs, user[i:i+2]...)
		}
	}
	return kvs
}

// manyAttributes returns n attributes with their labels.
func manyAttributes(n int) (a *Attributes, labels []string) {
	var kvs []string
	for i := range n {
		kvs = append(kvs, fmt.Sprintf("%c.attr%d", 'z'-i%26, i), strconv.Itoa(i))
	}
	return attributesOf(kvs...), kvs
}

// Attributes are labels beside ours and the user's, as far as profilers read them.
func TestAttributeLabels(t *testing.T) {
	needRecords(t)
	eight, eightLabels := manyAttributes(8)
	twenty, twentyLabels := manyAttributes(20)
	big := strings.Repeat("é", 100)
	for name, tt := range map[string]struct {
		a    *Attributes
		user []string
		want []string // but for ours
	}{
		"one":                  {attributesOf("http.app", "shop"), nil, []string{"http.app", "shop"}},
		"three":                {attributesOf("tenant", "1", "http.app", "shop", "user", ""), nil, []string{"tenant", "1", "http.app", "shop", "user", ""}},
		"four":                 {attributesOf("a", "1", "b", "2", "c", "3", "d", "4"), nil, []string{"a", "1", "b", "2", "c", "3", "d", "4"}},
		"eight":                {eight, nil, eightLabels},
		"twenty":               {twenty, nil, twentyLabels[:16]},
		"medium value":         {attributesOf("a", big[:60], "b", "1"), nil, []string{"a", big[:46], "b", "1"}},
		"long value":           {attributesOf("a", big), nil, []string{"a", big[:46]}},
		"long key":             {attributesOf("a.key.of.16.byte", "1", "a.key.of.15.byt", "2"), nil, []string{"a.key.of.15.byt", "2"}},
		"ours":                 {attributesOf("span_id", "1", "trace_id", "2", "a", "3"), nil, []string{"a", "3"}},
		"beside the user's":    {attributesOf("b", "1", "z", "2"), []string{"a", "x", "c", "y"}, []string{"a", "x", "b", "1", "c", "y", "z", "2"}},
		"instead of a user's":  {attributesOf("b", "1"), []string{"b", "x", "c", "y"}, []string{"b", "1", "c", "y"}},
		"room for two":         {eight, manyLabels(6), append(manyLabels(6), eightLabels[:4]...)},
		"room for none":        {eight, manyLabels(8), manyLabels(8)},
		"more than ten before": {eight, manyLabels(12), manyLabels(12)},
		"user has ours":        {attributesOf("b", "1"), []string{"span_id", "x", "trace_id", "y"}, []string{"b", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			apart(func() {
				if tt.user != nil {
					setUser(tt.user...)
				}
				before := goruntime.Labels()
				r := beginWith(5, tt.a)
				assertShows(t, 5, tt.want...)
				assert.LessOrEqual(t, len(shown()), max(10, 2+len(tt.user)/2))
				assert.Equal(t, tt.a.Encoded(), r.Attributes())
				plain := begin(6)
				assert.Nil(t, plain.Attributes())
				assertShows(t, 6, kept(tt.user)...)
				plain.End()
				assertShows(t, 5, tt.want...)
				r.End()
				assert.Equal(t, before, goruntime.Labels())
				assert.Equal(t, tt.a.Encoded(), r.Attributes())
			})
		})
	}
}

// Spans share what is shown with them, which stays as it is.
func TestAttributesAreShared(t *testing.T) {
	needRecords(t)
	apart(func() {
		for _, kvs := range [][]string{
			{"a", "1", "z", "2"},
			{"a", strings.Repeat("y", 50), "z", "2"},
			{"a", strings.Repeat("y", 200), "z", "2"},
		} {
			a := attributesOf(kvs...)
			labels := []string{kvs[0], Cut(kvs[1], 47), kvs[2], kvs[3]}
			want := string(a.Encoded())
			first := beginWith(1, a)
			second := beginWith(2, a)
			assertShows(t, 2, labels...)
			second.End()
			assertShows(t, 1, labels...)
			assert.Equal(t, want, string(a.Encoded()))
			first.End()
		}
	})
}

func TestAllocationsWithAttributes(t *testing.T) {
	needRecords(t)
	eight, _ := manyAttributes(8)
	for name, tt := range map[string]struct {
		a       *Attributes
		users   int
		objects float64
		bytes   uint64
	}{
		"three":        {attributesOf("http.app", "shop", "http.route", "/cart", "tenant", "7"), 0, 1, 320},
		"three longer": {attributesOf("http.app", "shop", "http.route", strings.Repeat("x", 60), "tenant", "7"), 0, 1, 384},
		"eight":        {eight, 0, 1, 576},
		"long":         {attributesOf("a", strings.Repeat("x", 100)), 0, 1, 1152},
		"with a user":  {attributesOf("http.app", "shop"), 1, 1, 576},
		"with many":    {eight, 9, 2, 1152 + 384},
	} {
		t.Run(name, func(t *testing.T) {
			apart(func() {
				if tt.users > 0 {
					setUser(manyLabels(tt.users)...)
				}
				assert.Equal(t, tt.objects, testing.AllocsPerRun(1000, func() { beginWith(1, tt.a).End() }))
				const runs = 1000
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for range runs {
					beginWith(1, tt.a).End()
				}
				runtime.ReadMemStats(&after)
				assert.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)/runs, tt.bytes+8)
			})
		})
	}
}

// A span is shown with other attributes by other records of it.
func TestAttachWithAttributes(t *testing.T) {
	needRecords(t)
	apart(func() {
		a, b := attributesOf("app", "a"), attributesOf("app", "b")
		r := beginWith(1, a)
		assertShows(t, 1, "app", "a")
		assert.False(t, r.Attached())
		same := r.Attach(attributesOf("app", "a"))
		assert.Same(t, r, Installed(), "they are equal")
		same.Detach()
		assert.False(t, r.Attached())

		outer := r.Attach(b)
		assert.True(t, r.Attached())
		assertShows(t, 1, "app", "b")
		assert.True(t, Installed().Shows(1))
		assert.Equal(t, encodedOf("b"), string(Installed().Attributes()))
		none := r.Attach(nil)
		assertShows(t, 1)
		inner := begin(2)
		assertShows(t, 2)
		assert.True(t, inner.Outer().Shows(1))
		assert.Nil(t, inner.Outer().Attributes())
		inner.End()
		assertShows(t, 1)
		none.Detach()
		assertShows(t, 1, "app", "b")
		child := beginWith(3, a)
		assertShows(t, 3, "app", "a")
		assert.Equal(t, encodedOf("b"), string(child.Outer().Attributes()))
		child.End()
		assertShows(t, 1, "app", "b")
		assert.Zero(t, testing.AllocsPerRun(10, func() { r.Attach(b).Detach() }), "these are known")
		outer.Detach()
		assertShows(t, 1, "app", "a")

		// On a goroutine of its own labels.
		apart(func() {
			setUser("worker", "1")
			saved := r.Attach(b)
			assertShows(t, 1, "worker", "1", "app", "b")
			r.EndAsGuest()
			assertShows(t, 0, "worker", "1")
			saved.Detach()
		})
		assert.Nil(t, Installed().Outer())
		assert.Zero(t, Current())
		r.End()
	})
}

// Attributes without end cost a span a bounded number of records, and what it was shown
// with before is not shown instead.
func TestAttachWithAttributesIsBounded(t *testing.T) {
	needRecords(t)
	apart(func() {
		r := beginWith(1, attributesOf("n", "first"))
		for i := range 2 * maxAttached {
			saved := r.Attach(attributesOf("n", strconv.Itoa(i)))
			if i < maxAttached {
				require.True(t, assertShows(t, 1, "n", strconv.Itoa(i)))
			} else {
				require.True(t, assertShows(t, 0))
			}
			saved.Detach()
			require.True(t, assertShows(t, 1, "n", "first"))
		}
		r.End()
	})
}
