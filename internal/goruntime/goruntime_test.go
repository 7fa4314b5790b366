// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goruntime

import (
	"errors"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errTest = errors.New("refused by a test")

// supported is true on platforms where calibration must succeed. There, a refused fact is a
// failure, not a reason to skip a test.
const supported = runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64")

func TestUnsupported(t *testing.T) {
	t.Parallel()
	if supported {
		t.Skip("this platform is supported")
	}
	err := Calibrate().Err()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "Calibrate on "+runtime.GOOS+"/"+runtime.GOARCH)
	assert.Zero(t, Calibrate().Self())
	for _, f := range Facts() {
		_, err := Calibrate().Offset(f)
		assert.ErrorIs(t, err, errors.ErrUnsupported, f)
	}
}

// Without does not change the facts that it keeps.
func TestWithout(t *testing.T) {
	t.Parallel()
	facts := func(fs ...Fact) []Fact { return fs }
	for _, tc := range []struct {
		name          string
		without, gone []Fact
		whole         bool
	}{
		{name: "thread id", without: facts(MProcid), gone: facts(MProcid)},
		{name: "goroutine id", without: facts(GGoid), gone: facts(GGoid)},
		{name: "m and its fields", without: facts(GM), gone: facts(GM, MProcid, MCurg)},
		{name: "labels", without: facts(GLabels, LabelList), gone: facts(GLabels, LabelList), whole: true},
		{name: "facts only for readers", without: facts(TLSG, MCurg), gone: facts(TLSG, MCurg), whole: true},
		{name: "everything", gone: Facts()},
		{name: "no such fact", without: facts(numFacts), whole: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			base := fakeRuntime()
			r := base.Without(errTest, tc.without...)
			for _, f := range Facts() {
				offset, err := r.Offset(f)
				if slices.Contains(tc.gone, f) {
					require.ErrorIs(t, err, errTest, f)
					assert.ErrorContains(t, err, f.String())
					assert.ErrorContains(t, r.Err(), f.String())
					assert.Zero(t, offset, f)
				} else {
					require.NoError(t, err, f)
					assert.Equal(t, base.facts[f].offset, offset, f)
				}
			}
			assert.Equal(t, len(tc.gone) == 0 || tc.whole, r.gm != 0 && r.goid != 0 && r.procid != 0)
			assert.NoError(t, base.Err(), "the original must not change")
		})
	}
}

// fakeRuntime returns a Runtime with invented offsets. Loading from them would be unsafe.
func fakeRuntime() *Runtime {
	var facts [numFacts]fact
	for f := range numFacts {
		if f != LabelList {
			facts[f].offset = 8 * int64(f+1)
		}
	}
	return newRuntime(facts)
}

func TestFactNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for f := range numFacts {
		assert.Equal(t, f, Facts()[f])
		assert.False(t, seen[f.String()], f)
		seen[f.String()] = true
	}
	assert.Equal(t, "fact(99)", Fact(99).String())
	_, err := fakeRuntime().Offset(99)
	assert.Error(t, err)
}
