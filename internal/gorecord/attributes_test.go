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

	"github.com/otelctx/otelctx/internal/goruntime"
)

// attributesOf returns attributes from alternating keys and values.
func attributesOf(kvs ...string) *Attributes {
	var all []Attribute
	for i := 0; i < len(kvs); i += 2 {
		all = append(all, Attribute{Index: uint8(i / 2), Key: kvs[i], Value: kvs[i+1]})
	}
	return NewAttributes(all)
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

// manyAttributes returns n attributes with their labels.
func manyAttributes(n int) (a *Attributes, labels []string) {
	var kvs []string
	for i := range n {
		kvs = append(kvs, fmt.Sprintf("%c.attr%d", 'z'-i%26, i), strconv.Itoa(i))
	}
	return attributesOf(kvs...), kvs
}

// Attributes are added as labels to the ids and the user's labels, within the limits of profilers.
func TestAttributeLabels(t *testing.T) {
	needRecords(t)
	eight, eightLabels := manyAttributes(8)
	twenty, twentyLabels := manyAttributes(20)
	big := strings.Repeat("é", 100)
	for name, tt := range map[string]struct {
		a    *Attributes
		user []string
		want []string // without trace_id and span_id
	}{
		"one":                        {attributesOf("http.app", "shop"), nil, []string{"http.app", "shop"}},
		"three":                      {attributesOf("tenant", "1", "http.app", "shop", "user", ""), nil, []string{"tenant", "1", "http.app", "shop", "user", ""}},
		"four":                       {attributesOf("a", "1", "b", "2", "c", "3", "d", "4"), nil, []string{"a", "1", "b", "2", "c", "3", "d", "4"}},
		"eight":                      {eight, nil, eightLabels},
		"twenty":                     {twenty, nil, twentyLabels[:16]},
		"medium value":               {attributesOf("a", big[:60], "b", "1"), nil, []string{"a", big[:46], "b", "1"}},
		"long value":                 {attributesOf("a", big), nil, []string{"a", big[:46]}},
		"long key":                   {attributesOf("a.key.of.16.byte", "1", "a.key.of.15.byt", "2"), nil, []string{"a.key.of.15.byt", "2"}},
		"ours":                       {attributesOf("span_id", "1", "trace_id", "2", "a", "3"), nil, []string{"a", "3"}},
		"beside the user's":          {attributesOf("b", "1", "z", "2"), []string{"a", "x", "c", "y"}, []string{"a", "x", "b", "1", "c", "y", "z", "2"}},
		"instead of a user's":        {attributesOf("b", "1"), []string{"b", "x", "c", "y"}, []string{"b", "1", "c", "y"}},
		"room for two":               {eight, manyLabels(6), append(manyLabels(6), eightLabels[:4]...)},
		"room for none":              {eight, manyLabels(8), manyLabels(8)},
		"the user has more than ten": {eight, manyLabels(12), manyLabels(12)},
		"user has ours":              {attributesOf("b", "1"), []string{"span_id", "x", "trace_id", "y"}, []string{"b", "1"}},
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
				Restore(user())
				assert.Equal(t, before, goruntime.Labels(), "the same object")
			})
		})
	}
}

// New allocates only once, unless the user has labels or the span has many attributes.
func TestAllocations(t *testing.T) {
	needRecords(t)
	eight, _ := manyAttributes(8)
	for name, tt := range map[string]struct {
		a       *Attributes
		users   int
		objects float64
		bytes   uint64
	}{
		"nothing":      {nil, 0, 1, 256},
		"three":        {attributesOf("http.app", "shop", "http.route", "/cart", "tenant", "7"), 0, 1, 416},
		"eight":        {eight, 0, 3, 1664},
		"long":         {attributesOf("a", strings.Repeat("x", 100)), 0, 3, 1664},
		"with a user":  {nil, 1, 3, 704},
		"with many":    {eight, 9, 4, 2304},
		"both are few": {attributesOf("http.app", "shop"), 1, 3, 896},
	} {
		t.Run(name, func(t *testing.T) {
			apart(func() {
				if tt.users > 0 {
					setUser(manyLabels(tt.users)...)
				}
				user := user()
				create := func() { newIn(1, 2, 3, 1, tt.a, user, nil).Install() }
				assert.LessOrEqual(t, testing.AllocsPerRun(1000, create), tt.objects)
				assert.Zero(t, testing.AllocsPerRun(100, func() { installed().End(true); User() }))
				const runs = 1000
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for range runs {
					create()
				}
				runtime.ReadMemStats(&after)
				// A garbage collection that starts meanwhile also allocates: less than 8 bytes per
				// record.
				assert.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)/runs, tt.bytes+8)
			})
		})
	}
}
