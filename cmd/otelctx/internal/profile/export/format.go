// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Format is how profiles are written.
type Format string

// The formats of files.
const (
	// Pprof is pprof's, gzipped.
	Pprof Format = "pprof"
	// OTLP is one ProfilesData message of OTLP, as protobuf.
	OTLP Format = "otlp"
	// JSON is one ProfilesData message in OTLP's JSON encoding.
	JSON Format = "json"
	// JSONLines has a ProfilesData message in OTLP's JSON encoding in each line, as the
	// file exporter of OpenTelemetry's specification does.
	JSONLines Format = "jsonl"
	// Folded has a stack in each line, as flamegraph.pl and speedscope read them.
	Folded Format = "folded"
	// HTML is a page with a flame graph, which loads nothing else.
	HTML Format = "html"
)

// endings are what names of files end in, by their format.
var endings = []struct {
	ending string
	format Format
}{
	{".pb.gz", Pprof},
	{".pprof", Pprof},
	{".pprof.gz", Pprof},
	{".otlp", OTLP},
	{".json", JSON},
	{".jsonl", JSONLines},
	{".folded", Folded},
	{".html", HTML},
}

// FormatOf returns the format that the name of a file asks for. The error says which names
// there are.
func FormatOf(path string) (Format, error) {
	name := strings.ToLower(filepath.Base(path))
	var known []string
	for _, e := range endings {
		if strings.HasSuffix(name, e.ending) {
			return e.format, nil
		}
		known = append(known, e.ending)
	}
	return "", fmt.Errorf("the name %s does not say the format: it ends in none of %s", path, strings.Join(known, ", "))
}
