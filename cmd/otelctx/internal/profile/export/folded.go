// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

// foldedEncoder writes a line for each stack: the service and the functions, the outermost first, separated by
// semicolons, then a space and the number of samples, nanoseconds of wall-clock time, or bytes. A stack that occurs in
// several calls of add gets a line for each call, and readers of the format add up the numbers. Samples of other kinds are
// left out, since they have another unit.
type foldedEncoder struct {
	to   io.Writer
	kind string
}

func (e *foldedEncoder) add(data *profilespb.ProfilesData) error {
	counts := map[string]int64{}
	var names []string
	for sample := range eachSample(data) {
		if sample.kind != e.kind {
			continue
		}
		names = names[:0]
		for name := range sample.frames() {
			names = append(names, foldedText(name))
		}
		counts[strings.Join(names, ";")] += sample.value
	}
	for _, stack := range slices.Sorted(maps.Keys(counts)) {
		if _, err := fmt.Fprintf(e.to, "%s %d\n", stack, counts[stack]); err != nil {
			return err
		}
	}
	return nil
}

func (*foldedEncoder) close() error { return nil }

// foldedText replaces the separator in a name.
func foldedText(name string) string { return strings.ReplaceAll(name, ";", ":") }
