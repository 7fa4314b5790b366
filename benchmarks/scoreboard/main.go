// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command scoreboard counts how often profilers attribute a sample to the right span. It runs patterns that occur in real
// services, with real libraries, and samples them with several profilers, called observers.
//
//	scoreboard serve   runs the patterns, one after the other
//	scoreboard score   runs scoreboard serve under observers, and prints how often each is right
//
// A pattern works at certain points: it uses the CPU for a moment, with a number on its stack. The
// number stands for the span that must be published at that moment according to the rules of package
// spanctx, which is usually the span of the context that the code was given, or none. Each sample
// thus contains the right answer, whichever observer took it.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := command(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "scoreboard:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("scoreboard "+name, flag.ExitOnError)
	switch name {
	case "serve":
		var s server
		s.flags(flags)
		_ = flags.Parse(args) // exits
		return s.serve(os.Stdin, os.Stdout)
	case "score":
		var b board
		b.flags(flags)
		_ = flags.Parse(args) // exits
		return b.score(os.Stdout)
	default:
		return fmt.Errorf("%q is neither serve nor score", name)
	}
}
