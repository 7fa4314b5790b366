// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// record is an example of an object that callers install as labels: a LabelMap followed by other
// data.
type record struct {
	LabelMap
	n [4]uint64
}

func newRecord(n uint64) *record {
	value := strconv.FormatUint(n, 10)
	return &record{LabelMap{[]Label{{"otelctx.a", value}, {"otelctx.b", value + value}}}, [4]uint64{n, n, n, n}}
}

// intact reports whether the running goroutine still has the labels from newRecord(n). It returns false
// if the garbage collector has freed them and the memory has been overwritten since.
func intact(n uint64) bool {
	want, got := newRecord(n), (*record)(Labels())
	return got != nil && got.n == want.n && len(got.List) == 2 && got.List[0] == want.List[0] && got.List[1] == want.List[1]
}

// alone runs f on a new goroutine and waits for it, so that f may change the labels.
func alone(f func()) {
	new(calibrator).fresh(func() {
		SetLabels(nil)
		f()
	})
}

func TestLabelsOfPprof(t *testing.T) {
	t.Parallel()
	calibrated(t)
	alone(func() {
		require.NoError(t, checkLabelMap())
		assert.Nil(t, Labels())
		pprof.Do(context.Background(), pprof.Labels("b", "2", "c", "", "a", "1"), func(ctx context.Context) {
			assert.Equal(t, []Label{{"a", "1"}, {"b", "2"}, {"c", ""}}, (*LabelMap)(Labels()).List)
			outer := Labels()
			pprof.Do(ctx, pprof.Labels("b", "3"), func(context.Context) {
				assert.Equal(t, []Label{{"a", "1"}, {"b", "3"}, {"c", ""}}, (*LabelMap)(Labels()).List)
			})
			assert.Equal(t, outer, Labels())
		})
		assert.Nil(t, Labels())
	})
}

// The garbage collector does not free labels that a goroutine still has. Without the write barrier
// it would, because the only reference to them moves between g.labels and a stack that the
// collector has already scanned.
func TestLabelsDuringGC(t *testing.T) {
	t.Parallel()
	calibrated(t)
	busy(t)
	var next atomic.Uint64
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			for range 20 {
				n := next.Add(1)
				SetLabels(unsafe.Pointer(newRecord(n)))
				for range 20 {
					saved := Labels()
					SetLabels(nil)
					runtime.Gosched()
					SetLabels(saved)
					runtime.Gosched()
					if !intact(n) {
						t.Errorf("record %d: %+v", n, (*record)(Labels()))
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestLabelsAreCollected(t *testing.T) {
	calibrated(t)
	alone(func() {
		rec := newRecord(1)
		w := weak.Make(rec)
		SetLabels(unsafe.Pointer(rec))
		for range 3 {
			runtime.GC()
			assert.True(t, intact(1))
		}
		SetLabels(nil)
		for i := 0; w.Value() != nil; i++ {
			require.Less(t, i, 100, "the record is kept alive by something else")
			runtime.GC()
		}
	})
}

func TestLabelContext(t *testing.T) {
	t.Parallel()
	type key struct{ name string }
	c := &labelContext{Context: context.Background(), value: "it"}
	assert.Equal(t, "it", c.Value(key{"first"}))
	assert.Nil(t, c.Value(key{"second"}))
	assert.Equal(t, "it", c.Value(key{"first"}))
	assert.Equal(t, fmt.Sprint(key{"first"}), fmt.Sprint(c.key))
}
