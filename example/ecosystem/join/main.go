// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

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
