// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"context"
	"encoding/hex"
	"runtime"
	"runtime/pprof"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/otelctx/otelctx/internal/goruntime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// needRecords skips the test where this platform has no records.
func needRecords(t testing.TB) {
	t.Helper()
	err := Available(goruntime.Calibrate())
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		require.Error(t, err)
		t.Skip(err)
	}
	require.NoError(t, err)
}

// apart runs f on a goroutine of its own, without labels, and waits for it.
func apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		goruntime.SetLabels(nil)
		f()
	}()
	<-done
}

// begin begins a span of which all follows from its id.
func begin(id uint64) *Record { return Begin(^id, id*3, id, 1, nil) }

// shown returns the labels of the calling goroutine.
func shown() []goruntime.Label { return labelsAt(goruntime.Labels()) }

// texts returns what labels of the span with this id say.
func texts(id uint64) (traceID, spanID string) {
	var b [24]byte
	for i := range 8 {
		b[i] = byte(^id >> (56 - 8*i))
		b[8+i] = byte(id * 3 >> (56 - 8*i))
		b[16+i] = byte(id >> (56 - 8*i))
	}
	return hex.EncodeToString(b[:16]), hex.EncodeToString(b[16:])
}

// assertShows checks that the labels of the calling goroutine are those of the span
// with this id, or if that is 0 no span's, and the user's.
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
	last := ""
	for i, l := range shown() {
		if i > 0 && l.Key <= last {
			t.Errorf("labels are not sorted: %q behind %q", l.Key, last)
		}
		last = l.Key
		got[l.Key] = l.Value
	}
	return assert.Equal(t, want, got) && assert.Equal(t, id, Current())
}

// setUser sets labels of the calling goroutine as a user does.
func setUser(kvs ...string) {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(kvs...)))
}

// heap returns how many bytes are reachable.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
