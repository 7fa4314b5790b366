// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command otelctx shows what running services publish for profilers, and records CPU profiles by span.
// Services in any language can publish a process context (OTEP 4719), which holds their OpenTelemetry
// resource. Go services with otelctx also publish the span that each goroutine is in.
//
//	otelctx list                            # the processes that publish
//	otelctx inspect 1234                    # everything that process 1234 publishes
//	otelctx watch 1234                      # the spans that its threads are in, live
//	otelctx spans 1234                      # its live spans, the oldest first
//	otelctx record 1234                     # what it uses the CPU for, span by span
//	otelctx record -- ./service -port 80    # a command, from its first instruction
//
// Reading the memory of another process needs the same user, if the kernel's Yama module allows that,
// or CAP_SYS_PTRACE. Recording also needs CAP_BPF and CAP_PERFMON. Both need Linux.
//
// Text output escapes what a terminal could interpret and cuts long values; it may change between
// versions. Programs use --json, which does neither and has a stable schema: [document],
// [spansDocument] and [recordDocument].
//
// This package parses the command line and prints. Package reader reads processes, and the internal
// packages record them.
//
// # Exit codes
//
// See [exitCodes], which --help, the manual page and the documentation show.
package main
