// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	serveOnly := flag.Bool("serve", false, "run only the service, until SIGINT or SIGTERM")
	clients := flag.Int("load", 2, "with -serve: the number of clients in the service that send it requests")
	otelctx := flag.String("otelctx", "otelctx", "the otelctx command that the demo runs")
	profile := flag.String("profile", "", "the file that the demo records to, profile.pb.gz in a new directory by default")
	duration := flag.Duration("duration", 10*time.Second, "how long the demo records")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if *serveOnly {
		err = serve(ctx, os.Stdout, *clients)
	} else {
		err = runDemo(ctx, os.Stdout, *otelctx, *profile, *duration)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}
