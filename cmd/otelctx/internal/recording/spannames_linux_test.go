// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
)

// namesOfSamples counts samples in spans by span name and endpoint.
func (r recorded) namesOfSamples() map[[2]string]int {
	names := map[[2]string]int{}
	for _, data := range r.batches {
		d := data.GetDictionary()
		for _, p := range profile.Each(data) {
			for _, s := range p.GetSamples() {
				if s.GetLinkIndex() == 0 {
					continue
				}
				var of [2]string
				for _, i := range s.GetAttributeIndices() {
					a := d.GetAttributeTable()[i]
					switch d.GetStringTable()[a.GetKeyStrindex()] {
					case "span_name":
						of[0] = a.GetValue().GetStringValue()
					case "endpoint":
						of[1] = a.GetValue().GetStringValue()
					}
				}
				names[of] += len(s.GetTimestampsUnixNano())
			}
		}
	}
	return names
}

// TestNamesOfSamples checks that each sample in a span has the names of the span and of its local root,
// with each carrier.
func TestNamesOfSamples(t *testing.T) {
	for _, words := range []string{
		busyservice.Words(busyservice.Records, busyservice.Started),
		busyservice.Words(busyservice.GoroutineTable),
		busyservice.Words(busyservice.ThreadSlots),
		busyservice.Words(busyservice.Records, busyservice.GoroutineTable, busyservice.ThreadSlots, busyservice.Foreign),
	} {
		t.Run(words, func(t *testing.T) {
			c := childproc.Start(t, busyservice.Role, nil)
			require.Equal(t, "burning", c.Ask("%s %s", words, busyservice.Named))
			config := Config{Selection: Selection{PIDs: []int{c.PID()}}, Duration: 500 * time.Millisecond, Sampler: sampler.Config{Frequency: busyservice.Frequency()}}
			var names map[[2]string]int
			for end := time.Now().Add(testenv.Patience); len(names) == 0 && time.Now().Before(end); {
				names = record(t, t.Context(), config).namesOfSamples()
			}
			require.NotEmpty(t, names)
			for of := range names {
				assert.Contains(t, [][2]string{{"request", "request"}, {"query", "request"}}, of)
			}
		})
	}
}

// TestRequestNames checks that unknown names are read at once, but not twice in a short time, and not from a program that the
// process has executed meanwhile.
func TestRequestNames(t *testing.T) {
	c := childproc.Start(t, busyservice.Role, nil)
	require.Equal(t, "burning", c.Ask("%s", busyservice.Words(busyservice.Records, busyservice.Named)))
	p, err := reader.Open(c.PID())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	layout, err := p.ThreadLayout(t.Context())
	require.NoError(t, err)
	for spans := []reader.LiveSpan(nil); len(spans) == 0; { // Wait for spans, which use the first names.
		spans, err = p.Spans(t.Context())
		require.NoError(t, err)
	}
	n := newNameTable(layout, nil)
	of := &target{image: sampler.Image{PID: c.PID()}, reader: p}
	of.acquire()
	var working sync.WaitGroup
	span := &sampler.Span{Name: 1, Endpoint: 1}
	assert.False(t, n.knows(span))
	same, replaced := func() error { return nil }, func() error { return errReplaced }
	n.request(&working, of, replaced)
	working.Wait()
	assert.False(t, n.knows(span))
	n.after = time.Time{}
	n.request(&working, of, same)
	working.Wait()
	assert.True(t, n.knows(span))
	assert.Equal(t, "request", n.name(1))
	n.names.Store(new([]string))
	n.after = time.Now().Add(time.Hour)
	n.request(&working, of, same)
	working.Wait()
	assert.False(t, n.knows(span))
}

// TestNameTable checks that the names read so far are kept if a new advertisement has the table at the same
// address.
func TestNameTable(t *testing.T) {
	layout := func(address uint64) *reader.ThreadLayout {
		return &reader.ThreadLayout{Names: &reader.Table{Address: address, HeaderSize: 256, EntrySize: 256, Capacity: 4096}}
	}
	n := newNameTable(layout(1), nil)
	n.names.Store(&[]string{"", "request", "query"})
	assert.Same(t, n, newNameTable(layout(1), n))
	assert.NotSame(t, n, newNameTable(layout(2), n))
	assert.Nil(t, newNameTable(&reader.ThreadLayout{}, n))
	assert.Nil(t, newNameTable(nil, n))
	assert.True(t, n.knows(&sampler.Span{Name: 2, Endpoint: 1}))
	assert.False(t, n.knows(&sampler.Span{Name: 3, Endpoint: 1}))
	assert.True(t, n.knows(&sampler.Span{}))
	var none *nameTable
	assert.True(t, none.knows(&sampler.Span{Name: 3}))
	none.read(nil, nil)
	shown := []reader.Attribute{{Key: "tenant", Value: "7"}}
	span := &sampler.Span{Name: 2, Endpoint: 9}
	assert.Equal(t, []reader.Attribute{{Key: "tenant", Value: "7"}, {Key: "span_name", Value: "query"}}, n.appendTo(shown, span))
	assert.Equal(t, shown, none.appendTo(shown, span))
}
