// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/keymap"
	"github.com/otelctx/otelctx/internal/testing/childproc"
)

const withKeys = "slots goroutine-table record keys=http.app+tenant advertise publish"

// attributesIn makes actor a execute an order, and returns the attributes of its span.
func attributesIn(t *testing.T, c *childproc.Child, p *Process, order string) []Attribute {
	t.Helper()
	tellf(t, c, "%s", order)
	askf(t, c, "spin a")
	return attributesOf(t, withSpans(threadsOf(t, p)))
}

// attributesOf returns the attributes of the only span in threads.
func attributesOf(t *testing.T, threads []Thread) []Attribute {
	t.Helper()
	require.Len(t, threads, 1)
	return threads[0].Span.Attributes
}

// TestScopedAttributes checks that a reader always finds the attributes of the active context,
// including attributes whose keys are published only after the reader has read the keys.
func TestScopedAttributes(t *testing.T) {
	for carriers, kind := range map[string]CarrierKind{
		"slots goroutine-table record": GoroutineRecord, "slots": ThreadSlots, "slots goroutine-table": GoroutineTable,
	} {
		t.Run(carriers, func(t *testing.T) {
			c, p := acting(t, strings.Replace(withKeys, "slots goroutine-table record", carriers, 1))
			tellf(t, c, "lock a")
			tellf(t, c, "scope a http.app=shop user=alice")
			long := strings.Repeat("é", 40)
			for _, step := range []struct {
				order string
				span  uint64
				want  string
			}{
				{"nest a 1", 1, "http.app=shop"},
				{"scope a tenant=7 http.app=cart", 1, "http.app=shop"},
				{"nest a 2", 2, "http.app=cart tenant=7"},
				{"end a", 1, "http.app=shop"},
				{"attach a", 1, "http.app=cart tenant=7"},
				{"end a", 1, "http.app=shop"},
				{"keys a user", 1, "http.app=shop"},
				{"nest a 3", 3, "http.app=cart tenant=7 user=alice"},
				{"keys a more", 3, "http.app=cart tenant=7 user=alice"},
				{"end a", 1, "http.app=shop"},
				{"scope a more=1 user= tenant=" + long, 1, "http.app=shop"},
				{"nest a 4", 4, "http.app=cart more=1 tenant=" + long + " user="},
			} {
				tellf(t, c, "%s", step.order)
				want := inner(askf(t, c, "spin a"), step.span, kind)
				want.Span.LocalRootSpanID = spanIDOf(theSpan.SpanID + 1)
				shown := withSpans(threadsOf(t, p))
				var got []string
				for _, a := range attributesOf(t, shown) {
					got = append(got, a.Key+"="+a.Value)
				}
				slices.Sort(got)
				assert.Equal(t, strings.Fields(step.want), got, step.order)
				shown[0].Span.Attributes, shown[0].Span.encoded = nil, nil
				assert.Equal(t, want, shown[0], step.order)
			}
		})
	}
}

// TestAllKeys checks that a process can publish 256 keys of attributes, and that an attribute with
// one more key is left out.
func TestAllKeys(t *testing.T) {
	c, p := acting(t, withKeys)
	tellf(t, c, "lock a")
	tellf(t, c, "scope a http.app=shop key.2=third key.255=last key.256=refused")
	attributesIn(t, c, p, "nest a 1") // reads the first keys
	var keys []string
	for i := 2; i <= keymap.MaxKeys; i++ {
		keys = append(keys, fmt.Sprintf("key.%d", i))
	}
	tellf(t, c, "keys a %s", strings.Join(keys, " "))
	assert.Equal(t, []Attribute{{"http.app", "shop"}, {"key.2", "third"}, {"key.255", "last"}}, attributesIn(t, c, p, "nest a 2"))
}

// TestKeysAreRefreshed checks that the reader reads the keys again if a span has an attribute whose
// key is unknown.
func TestKeysAreRefreshed(t *testing.T) {
	c, p := acting(t, withKeys)
	tellf(t, c, "lock a")
	tellf(t, c, "scope a http.app=shop user=alice")
	attributesIn(t, c, p, "nest a 1")
	old, err := p.threadView(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"http.app", "tenant"}, old.keys)
	tellf(t, c, "keys a user")
	attributesIn(t, c, p, "nest a 2")
	threads := withSpans(threadsOf(t, p))
	// Decode the span with the old keys, as if the key "user" had been published between the reads
	// of the keys and of the span.
	threads[0].Span.Attributes = nil
	p.nameAttributes(t.Context(), old, threads)
	assert.Equal(t, []Attribute{{"http.app", "shop"}, {"user", "alice"}}, attributesOf(t, threads))
}
