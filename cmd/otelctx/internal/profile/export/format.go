// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Format is a file format for profiles.
type Format string

// The formats of files.
const (
	// Pprof is the gzipped pprof format.
	Pprof Format = "pprof"
	// OTLP is one OTLP ProfilesData message in protobuf.
	OTLP Format = "otlp"
	// JSON is one ProfilesData message in OTLP's JSON encoding.
	JSON Format = "json"
	// JSONLines is one ProfilesData message per line in OTLP's JSON encoding, as written by the file
	// exporter of OpenTelemetry's specification.
	JSONLines Format = "jsonl"
	// Folded is one stack per line, as read by flamegraph.pl and speedscope.
	Folded Format = "folded"
	// HTML is a self-contained page with a flame graph.
	HTML Format = "html"
)

// endings lists the file name endings of the formats.
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

// FormatOf returns the format for a file name's ending. The error for an unknown ending lists the
// valid ones.
func FormatOf(path string) (Format, error) {
	name := strings.ToLower(filepath.Base(path))
	var known []string
	for _, e := range endings {
		if strings.HasSuffix(name, e.ending) {
			return e.format, nil
		}
		known = append(known, e.ending)
	}
	return "", fmt.Errorf("the name %s does not select a format: it ends in none of %s", path, strings.Join(known, ", "))
}
