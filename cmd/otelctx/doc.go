// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command otelctx shows what running services publish for profilers, and records CPU profiles by span.
// Services in any language can publish a process context (OTEP 4719), which holds their OpenTelemetry
// resource. Go services with otelctx also publish the span that each goroutine is in.
//
//	otelctx list                            # the processes that publish
//	otelctx top 1234                        # which endpoints and spans use the CPU, live
//	otelctx inspect 1234                    # everything that process 1234 publishes
//	otelctx watch 1234                      # the spans that its threads are in, live
//	otelctx spans 1234                      # its live spans, the oldest first
//	otelctx goroutines 1234                 # all its goroutines, grouped by equal stacks
//	otelctx record 1234                     # what it uses the CPU for, span by span
//	otelctx record -- ./service -port 80    # a command, from its first instruction
//
// Reading another process's memory needs CAP_SYS_PTRACE, or the same user if the kernel's Yama module allows
// that. Recording also needs CAP_BPF and CAP_PERFMON. Both need Linux.
//
// Text output escapes characters that a terminal could interpret and truncates long values; it may change
// between versions. Programs should use --json, whose values are complete and whose schema is stable: see the type
// that each command documents.
//
// This package wires the subcommands, which are packages of their own: docs/design/0012-command.md says what is where.
//
// # Exit codes
//
// See [exitcode.Table], which --help, the manual page and the documentation show.
package main
