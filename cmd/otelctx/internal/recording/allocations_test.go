// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
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

// TestRateUnknown checks the reason that is given for a program whose rate is still unknown: one that a command started
// may have published it just before it ended.
func TestRateUnknown(t *testing.T) {
	for children, want := range map[bool]error{false: errNoRate, true: errNoRateYet} {
		s := &scanner{config: &Config{Selection: Selection{Children: children}}}
		s.followRate(&target{}, nil)
		err := *s.unsampled.Load()
		assert.ErrorIs(t, err, ErrNoAllocations)
		assert.ErrorIs(t, err, want)
		assert.Equal(t, children, errors.Is(err, errNoRateYet))
	}
}
