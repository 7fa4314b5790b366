// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command otelctx shows what processes publish about themselves in their process
// context (OTEP 4719). That is the OpenTelemetry resource of a service, as a profiler
// sees it, in whatever language the service is written. It also shows which spans the
// threads of a process are in.
//
//	otelctx list             # every publishing process on the host
//	otelctx inspect 1234     # everything that process 1234 publishes
//	otelctx watch 1234       # the spans that its threads are in, live
//	otelctx spans 1234       # its spans that have not ended, the oldest first
//	otelctx record 1234      # what it uses the CPU for, span by span, as a profile
//	otelctx record -- ./service -port 80    # the same from its first instruction on
//
// Reading the memory of another process needs the same user, if the kernel's Yama
// module allows that, or the capability CAP_SYS_PTRACE. Recording needs
// CAP_BPF and CAP_PERFMON too. It runs on Linux; elsewhere it says so.
//
// What it prints for people quotes whatever a terminal could take for a command, and
// cuts long values short; it may change between versions. Programs use --json, which
// does neither and is stable: [document], [spansDocument] and [recordDocument] are the schemas.
//
// The command knows nothing of BPF, nor of how processes publish: its internal packages and
// package reader do. It reads the command line, and prints.
//
// # Exit codes
//
// [exitCodes] is the table of them, which otelctx --help, the manual page and docs show.
package main
