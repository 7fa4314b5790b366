// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command join joins spans and CPU profiles from the files of an OpenTelemetry Collector. For each
// service and span name it prints CPU time next to wall time.
//
//	join [-json] TRACES PROFILES
//
// The files are the output of the Collector's file exporter: OTLP JSON, one export request per line.
// A sample belongs to the span that its link names, which is the innermost active span: the CPU time
// of a span name excludes child spans, while its wall time includes them.
//
// Only the time during which a service was recorded is compared. A span that was in progress for part
// of that time counts with this part of its wall time. Services without a profile are left out.
//
// CPU time whose link names no span of TRACES is listed as "(not exported)": the span was not
// sampled, was dropped, or had not ended yet. CPU time without a span, such as that of the garbage
// collector, the runtime's scheduler and code without instrumentation, is listed as "(no span)".
//
// With -json: {recorded_nano, cpu_nano, services: [{service, cpu_nano, no_span_cpu_nano,
// not_exported_cpu_nano}], spans: [{service, name, spans, wall_nano, cpu_nano}]}.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	asJSON := flag.Bool("json", false, "print a JSON object instead of a table")
	flag.Usage = func() {
		_, _ = fmt.Fprintln(flag.CommandLine.Output(), "usage: join [-json] TRACES PROFILES")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(os.Stdout, flag.Arg(0), flag.Arg(1), *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "join:", err)
		os.Exit(1)
	}
}

// run joins the files and prints the result.
func run(w io.Writer, traces, profiles string, asJSON bool) error {
	s, err := readTraces(traces)
	if err != nil {
		return err
	}
	r, err := readProfiles(profiles)
	if err != nil {
		return err
	}
	result := join(s, r)
	if !asJSON {
		return writeTable(w, result)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(result)
}
