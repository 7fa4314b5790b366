// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	otlp "github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// foldedEncoder writes a line for each stack: the service and the functions, the outermost first, separated
// by semicolons, then a space and the number of samples. Several parts may have lines for the same stack,
// which readers of the format sum up.
type foldedEncoder struct{ to io.Writer }

func (e *foldedEncoder) add(data *profilespb.ProfilesData) error {
	p, err := otlp.Pprof(data)
	if err != nil {
		return err
	}
	counts := map[string]int64{}
	var names []string
	for _, s := range p.Sample {
		names = append(names[:0], foldedText(serviceOf(s)))
		for name := range functionsOf(s) {
			names = append(names, foldedText(name))
		}
		counts[strings.Join(names, ";")] += s.Value[0]
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

// serviceOf returns the service or the executable of a sample's process.
func serviceOf(s *profile.Sample) string {
	for _, key := range []string{string(semconv.ServiceNameKey), string(semconv.ProcessExecutableNameKey)} {
		if names := s.Label[key]; len(names) > 0 {
			return names[0]
		}
	}
	return "[unknown]"
}

// functionsOf yields the functions of a sample, the outermost first.
func functionsOf(s *profile.Sample) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, l := range slices.Backward(s.Location) {
			if len(l.Line) == 0 && !yield(unnamed(l)) {
				return
			}
			for _, line := range slices.Backward(l.Line) {
				if !yield(line.Function.Name) {
					return
				}
			}
		}
	}
}

// unnamed returns the placeholder for a function without a name: the file that contains it.
func unnamed(l *profile.Location) string {
	if l.Mapping == nil || l.Mapping.File == "" {
		return "[unknown]"
	}
	return "[" + strings.Trim(path.Base(l.Mapping.File), "[]") + "]"
}
