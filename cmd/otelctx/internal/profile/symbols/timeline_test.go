// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTimeline checks which region the timeline returns at a given time. The step "1 a:0-4" means that file a was
// mapped at addresses 0 to 3 at time 1. "3 scan a:0-4 b:6-8" means that a scan at time 3 found exactly these
// mappings. The file "-" is anonymous memory. The expected text has a character for each of the addresses 0 to 9: the
// file, or "." if no mapping is known.
func TestTimeline(t *testing.T) {
	for name, c := range map[string]struct {
		steps []string
		want  map[int]string
	}{
		"replaced":              {[]string{"0 scan a:0-4", "2 b:0-4"}, map[int]string{0: "aaaa......", 1: "aaaa......", 2: "bbbb......"}},
		"and back":              {[]string{"0 scan a:0-4", "2 b:0-4", "3 a:0-4"}, map[int]string{1: "aaaa......", 2: "bbbb......", 3: "aaaa......"}},
		"larger":                {[]string{"0 scan a:0-2 c:3-4", "2 b:0-6"}, map[int]string{1: "aa.c......", 2: "bbbbbb...."}},
		"in the middle":         {[]string{"0 scan a:0-9", "2 b:3-5"}, map[int]string{1: "aaaaaaaaa.", 2: "aaabbaaaa."}},
		"across":                {[]string{"0 scan a:0-4 b:4-8", "2 c:2-6"}, map[int]string{1: "aaaabbbb..", 2: "aaccccbb.."}},
		"reported again":        {[]string{"0 scan a:0-4", "2 a:0-4"}, map[int]string{1: "aaaa......", 2: "aaaa......"}},
		"found, then reported":  {[]string{"0 scan a:0-4", "3 scan b:0-4", "2 b:0-4"}, map[int]string{1: "aaaa......", 2: "bbbb......", 3: "bbbb......"}},
		"found, not reported":   {[]string{"0 scan a:0-4", "3 scan b:0-4"}, map[int]string{2: "aaaa......", 3: "bbbb......"}},
		"reported late, gone":   {[]string{"0 scan a:0-4", "3 scan b:0-4", "2 c:0-4"}, map[int]string{3: "bbbb......"}},
		"later than a scan":     {[]string{"0 scan a:0-4", "3 b:0-4", "2 scan a:0-4"}, map[int]string{2: "aaaa......", 3: "bbbb......"}},
		"unmapped":              {[]string{"0 scan a:0-4 b:6-8", "3 scan b:6-8"}, map[int]string{2: "aaaa..bb..", 3: "......bb.."}},
		"split, then found":     {[]string{"0 scan a:0-9", "2 b:3-5", "3 scan a:0-3 b:3-5 a:5-9"}, map[int]string{1: "aaaaaaaaa.", 2: "aaabbaaaa.", 3: "aaabbaaaa."}},
		"anonymous memory":      {[]string{"0 scan -:0-8", "2 -:2-4", "3 a:4-6"}, map[int]string{1: "--------..", 2: "--------..", 3: "----aa--.."}},
		"before the first scan": {[]string{"1 scan a:0-4"}, map[int]string{0: "..........", 1: "aaaa......"}},
	} {
		t.Run(name, func(t *testing.T) {
			epoch := time.Now()
			at := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
			region := func(text string) *Region {
				r := &Region{}
				file, addresses, _ := strings.Cut(text, ":")
				_, err := fmt.Sscanf(addresses, "%d-%d", &r.mapping.Start, &r.mapping.Limit)
				require.NoError(t, err)
				if r.mapping.Path = file; file != "-" {
					r.inode, r.mapping.FileOffset = uint64(file[0]), r.mapping.Start
				}
				return r
			}
			var line timeline
			for _, step := range c.steps {
				words := strings.Fields(step)
				when := at(int(words[0][0] - '0'))
				if words[1] != "scan" {
					line.insert(region(words[1]), when)
					continue
				}
				var found []*Region
				for _, w := range words[2:] {
					found = append(found, region(w))
				}
				line.replace(found, when, func(*Region) {})
			}
			for when, want := range c.want {
				var got strings.Builder
				for address := range uint64(10) {
					if r := line.find(address, at(when)); r != nil {
						got.WriteString(r.mapping.Path)
					} else {
						got.WriteString(".")
					}
				}
				assert.Equal(t, want, got.String(), "at %d", when)
			}
		})
	}
}

// TestTimelineIsBounded checks that the number of remembered mappings is bounded, no matter how many mappings a
// process makes.
func TestTimelineIsBounded(t *testing.T) {
	var line timeline
	epoch := time.Now()
	for i := range 10 * maxPast {
		r := &Region{inode: uint64(1 + i%3), mapping: Mapping{Start: 0, Limit: 10}}
		line.insert(r, epoch.Add(time.Duration(i)))
		require.LessOrEqual(t, len(line.past), maxPast)
		require.Len(t, line.now, 1)
	}
}
