// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command ecosystem measures the CPU time of spans with a complete setup: an OpenTelemetry
// Collector, a service that sends it spans, and otelctx record, which sends it the service's
// profile. It joins the Collector's files and prints CPU time next to wall time for each span name.
//
//	ecosystem                # record for 10 s, into a new directory
//	ecosystem -duration 1m -freq 997 -dir DIR
//
// It runs a Collector, quickstart, otelctx and join as a user would by hand, and prints the commands.
// Flags set the paths of these four programs. make interop WHAT=ecosystem, run at the top of the
// repository, builds them all and runs this command.
//
// Recording needs the capabilities CAP_BPF and CAP_PERFMON: without them the command exits with
// code 4, as otelctx does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// exitNotPermitted is the exit code of otelctx if the kernel denies permission.
const exitNotPermitted = 4

func main() {
	r := runner{out: os.Stdout}
	flag.StringVar(&r.collector, "collector", "collector", "the collector's command")
	flag.StringVar(&r.service, "quickstart", "quickstart", "the service's command")
	flag.StringVar(&r.otelctx, "otelctx", "otelctx", "the recorder's command")
	flag.StringVar(&r.join, "join", "join", "the join command")
	flag.StringVar(&r.dir, "dir", "", "the directory for traces.jsonl and profiles.jsonl, a new one by default")
	flag.DurationVar(&r.duration, "duration", 10*time.Second, "how long to record")
	flag.IntVar(&r.frequency, "freq", 997, "how many samples to take in a second of CPU time")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := r.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ecosystem:", err)
		os.Exit(exitCode(err))
	}
}

// exitCode returns 4 if recording is not permitted, and otherwise 1.
func exitCode(err error) int {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == exitNotPermitted {
		return exitNotPermitted
	}
	return 1
}
