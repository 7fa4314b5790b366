// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSplitList(t *testing.T) {
	assert.Equal(t, []string{"a", "b,c", "\xff\\", "d"}, splitList([]string{`a,b\,c`, "\xff\\", "d"}))
	assert.Empty(t, splitList(nil))
	assert.Empty(t, splitList([]string{"", ","}), "nothing is chosen by an empty value")
	assert.Equal(t, []string{"a"}, splitList([]string{"a,"}))
}
