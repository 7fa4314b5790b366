// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

// TestWithoutAllocator checks which functions are left of a stack, the innermost first.
func TestWithoutAllocator(t *testing.T) {
	for stack, want := range map[string]string{
		"runtime.mProf_Malloc runtime.mallocgc runtime.makeslice main.f runtime.main":  "main.f runtime.main",
		"runtime.mProf_Malloc runtime.mallocgc internal/runtime/maps.New main.f":       "main.f",
		"runtime.mProf_Malloc runtime.mallocgcSmallNoscan runtime.allocm runtime.newm": "runtime.allocm runtime.newm",
		"runtime.mProf_Malloc runtime.profilealloc runtime.mallocgc":                   "runtime.mProf_Malloc runtime.profilealloc runtime.mallocgc",
		"runtime.mProf_Malloc - main.f":                                                "- main.f",
		"":                                                                             "",
	} {
		var locations []*symbols.Location
		for name := range strings.FieldsSeq(stack) {
			l := &symbols.Location{}
			if name != "-" { // an unknown function
				l.Lines = []symbols.Line{{Function: "main.inlined"}, {Function: name}}
			}
			locations = append(locations, l)
		}
		var left []string
		for _, l := range withoutAllocator(locations) {
			name := "-"
			if len(l.Lines) > 0 {
				name = l.Lines[1].Function
			}
			left = append(left, name)
		}
		assert.Equal(t, want, strings.Join(left, " "), stack)
	}
}
