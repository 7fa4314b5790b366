// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command ecosystem runs everything that it takes to see what spans used the processor.
// It runs an OpenTelemetry Collector, a service that sends it spans, and otelctx record,
// which sends it the service's profile. Then it joins what the collector wrote, and
// prints for each span name CPU time beside wall time.
//
//	ecosystem                # record for 10 s, into a new directory
//	ecosystem -duration 1m -freq 997 -dir DIR
//
// It runs a Collector, quickstart, otelctx and join as a user would by hand, and shows how;
// flags say where they are. make interop WHAT=ecosystem, at the top of the repository, builds
// them all and runs this.
//
// Recording takes the capabilities CAP_BPF and CAP_PERFMON: without them it exits with
// code 4, as otelctx does.
package main
