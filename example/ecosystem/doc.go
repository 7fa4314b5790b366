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
