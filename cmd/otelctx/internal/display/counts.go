// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package display

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// maxCounts is the maximum number of names that Counts returns.
const maxCounts = 5

// Counts returns names with their counts, as in "a (3), b (1)", the most frequent first. It leaves out the empty name.
func Counts(counts map[string]int) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	var texts []string
	for i, name := range names {
		if i == maxCounts {
			texts = append(texts, fmt.Sprintf("%d others", len(names)-i))
			break
		}
		if name != "" {
			texts = append(texts, fmt.Sprintf("%s (%d)", Key(name), counts[name]))
		}
	}
	return strings.Join(texts, ", ")
}
