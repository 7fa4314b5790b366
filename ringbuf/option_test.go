// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
)

var errTest = errors.New("refused by a test")

func TestUnsupported(t *testing.T) {
	if goruntime.Supported {
		t.Skip("this platform is supported")
	}
	r, err := New()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "ringbuf.New")
	assert.Nil(t, r)
}

// withRuntime makes New use r instead of the calibrated runtime offsets.
func withRuntime(r *goruntime.Runtime) Option {
	return optionFunc(func(c *config) { c.runtime = r })
}

func TestInvalidOptions(t *testing.T) {
	known := goruntime.Calibrate()
	for _, tt := range []struct {
		name string
		opts []Option
		want string
	}{
		{"no capacity", []Option{WithCapacity(0)}, "capacity 0 is not a power of two"},
		{"negative capacity", []Option{WithCapacity(-4)}, "capacity -4 is not a power of two"},
		{"three slots", []Option{WithCapacity(3)}, "capacity 3 is not a power of two"},
		{"one more than a power", []Option{WithCapacity(65537)}, "capacity 65537 is not a power of two"},
		{"too many slots", []Option{WithCapacity(1 << 25)}, "capacity 33554432 is not a power of two up to 16777216"},
		{"negative attribute space", []Option{WithAttributeSpace(-1)}, "attribute space of -1 bytes"},
		{"too much attribute space", []Option{WithAttributeSpace(613)}, "attribute space of 613 bytes, at most 612"},
		{"layout 1 by goroutine", []Option{WithDatadogLayout(), WithIndex(ByGoroutine)}, "layout 1 supports only ByThread"},
		{"layout 1 with attributes", []Option{WithDatadogLayout(), WithAttributeSpace(1)}, "layout 1 supports only ByThread and no attributes"},
		{"no such index", []Option{WithIndex(2)}, "Index(2) is neither"},
		{"negative index", []Option{WithIndex(-1)}, "Index(-1) is neither"},
		{"no goroutine ids", []Option{
			WithIndex(ByGoroutine), withRuntime(known.Without(errTest, goruntime.GGoid)),
		}, "index by goroutine: goruntime: g.goid: refused by a test"},
		{"nothing known", []Option{WithIndex(ByGoroutine), withRuntime(known.Without(errTest))}, errTest.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.ErrorContains(t, newConfig(tt.opts).check(), tt.want)
			if goruntime.Supported {
				r, err := New(tt.opts...)
				assert.ErrorContains(t, err, "ringbuf: ")
				assert.ErrorContains(t, err, tt.want)
				assert.Nil(t, r)
			}
		})
	}
}

func TestValidOptions(t *testing.T) {
	for _, opts := range [][]Option{
		{WithIndex(2), WithIndex(ByThread)},
		{WithDatadogLayout(), WithAttributeSpace(0), WithIndex(ByThread)},
	} {
		assert.NoError(t, newConfig(opts).check())
	}
}

func TestIndexString(t *testing.T) {
	assert.Equal(t, "thread goroutine Index(-1)", fmt.Sprint(ByThread, ByGoroutine, Index(-1)))
}
