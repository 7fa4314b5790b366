// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command wild is the scoreboard of attribution: patterns of real services, with real
// libraries, and what profilers see of each.
//
//	wild serve   runs the patterns, one after the other
//	wild score   has observers look at wild serve, and prints how often each is right
//
// Each pattern works under a stack that spells a number. The number stands for what the
// contract of attribution says of that moment: the span of the context that the code was
// given, or nothing. So every sample, by whichever observer, tells what is true of it.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := command(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "wild:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("wild "+name, flag.ExitOnError)
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
