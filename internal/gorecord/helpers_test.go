// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"context"
	"encoding/hex"
	"fmt"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// needRecords skips the test if records are not available on this platform.
func needRecords(t testing.TB) {
	t.Helper()
	err := Available(goruntime.Calibrate())
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		require.Error(t, err)
		t.Skip(err)
	}
	require.NoError(t, err)
}

// apart runs f on a new goroutine that has no labels, and waits for it.
func apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		goruntime.SetLabels(nil)
		f()
	}()
	<-done
}

// newOf returns a record for a span that the calling goroutine starts inside its current span, if
// any. All data of the new span is computed from its id.
func newOf(id uint64, a *Attributes) *Record {
	r := newIn(^id, id*3, id, 1, a, user(), installed())
	ancestors := ancestorsIn(installed())
	r.SetCell(wire.Ref(id<<20), &ancestors, 0)
	return r
}

// newIn does the same as [New] for a child of the span of previous. If previous is nil, the span has no
// parent.
func newIn(traceIDHigh, traceIDLow, spanID uint64, traceFlags uint8, a *Attributes, user UserLabels, previous *Record) *Record {
	r := New(traceIDHigh, traceIDLow, spanID, traceFlags, a, &Names{}, user)
	ancestors := ancestorsIn(previous)
	r.SetCell(0, &ancestors, 0)
	r.SetPrevious(previous)
	return r
}

// variantIn calls [Record.Variant] without names.
func (r *Record) variantIn(a *Attributes, user UserLabels, previous *Record) *Record {
	return r.Variant(a, &Names{}, 0, user, previous)
}

// ancestorsIn returns the ancestors of a span whose parent is the span of r.
func ancestorsIn(r *Record) (a [wire.Ancestors]wire.Ref) {
	if r != nil {
		a = [wire.Ancestors]wire.Ref{r.ref, r.ancestors[0], r.ancestors[1]}
	}
	return a
}

// user returns a label pointer to the user's labels on the calling goroutine.
func user() UserLabels {
	labels, _ := User()
	return labels
}

// begin creates a record with newOf and installs it on the calling goroutine.
func begin(id uint64) *Record { return beginWith(id, nil) }

func beginWith(id uint64, a *Attributes) *Record {
	r := newOf(id, a)
	r.Install()
	return r
}

// manyLabels returns n labels as alternating keys and values.
func manyLabels(n int) (kvs []string) {
	for i := range n {
		kvs = append(kvs, fmt.Sprintf("key%02d", i), fmt.Sprint("value", i))
	}
	return kvs
}

// kept returns the user's labels without those that our labels replace.
func kept(user []string) (kvs []string) {
	for i := 0; i < len(user); i += 2 {
		if user[i] != "span_id" && user[i] != "trace_id" {
			kvs = append(kvs, user[i:i+2]...)
		}
	}
	return kvs
}

// shown returns the labels of the calling goroutine.
func shown() []goruntime.Label { return labelsAt(goruntime.Labels()) }

// texts returns the values of the labels trace_id and span_id for the span with this id.
func texts(id uint64) (traceID, spanID string) {
	var b [24]byte
	for i := range 8 {
		b[i] = byte(^id >> (56 - 8*i))
		b[8+i] = byte(id * 3 >> (56 - 8*i))
		b[16+i] = byte(id >> (56 - 8*i))
	}
	return hex.EncodeToString(b[:16]), hex.EncodeToString(b[16:])
}

// assertShows checks that the calling goroutine has the user's labels and the id labels of the span
// with this id. If id is 0, it must have only the user's.
func assertShows(t testing.TB, id uint64, user ...string) bool {
	t.Helper()
	want := map[string]string{}
	for i := 0; i < len(user); i += 2 {
		want[user[i]] = user[i+1]
	}
	if id != 0 {
		want["trace_id"], want["span_id"] = texts(id)
	}
	got := map[string]string{}
	for _, l := range shown() {
		assert.NotContains(t, got, l.Key, "label keys must be unique")
		got[l.Key] = l.Value
	}
	return assert.Equal(t, want, got)
}

// valid reports whether the record's valid flag is set.
func (r *Record) valid() bool { return atomic.LoadUint32(&r.state)&1 == 1 }

// setUser sets labels on the calling goroutine through runtime/pprof, as a user does.
func setUser(kvs ...string) {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(kvs...)))
}

// installed returns the record that is installed on the calling goroutine, or nil.
func installed() *Record {
	_, r := User()
	return r
}
