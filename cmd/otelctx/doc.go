// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command otelctx shows what processes publish about themselves in their process
// context (OTEP 4719): the OpenTelemetry resource of a service, as a profiler sees
// it, in whatever language the service is written; and which spans its threads are in.
//
//	otelctx list             # every publishing process on the host
//	otelctx inspect 1234     # everything that process 1234 publishes
//	otelctx watch 1234       # the spans that its threads are in, live
//	otelctx spans 1234       # its spans that have not ended, the oldest first
//	otelctx record 1234      # what it uses the CPU for, span by span, as a profile
//
// It reads the memory of other processes, which takes the same user, as far as the
// kernel's Yama module allows that, or the capability CAP_SYS_PTRACE. Recording takes
// CAP_BPF and CAP_PERFMON too. It runs on Linux; elsewhere it says so.
//
// What it prints for people quotes whatever a terminal could take for a command, and
// cuts long values short; it may change between versions. Programs use --json, which
// does neither and is stable: [document], [spansDocument] and [recordDocument] are the schemas.
//
// # Exit codes
//
//	0  success; for list also if some processes could not be examined, for watch
//	   and record also if the process ended meanwhile
//	1  any other error, such as an unsupported platform
//	2  the command line is wrong
//	3  the process publishes no context, or for watch and spans shows none
//	4  not permitted to read the process, or for record to sample
//	5  there is no such process, or no longer
//	6  what the process publishes is not a valid context
//	7  the context was being updated each time it was looked at
//	8  the process makes those who read it wait, and was given up
package main
