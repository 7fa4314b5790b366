// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package creader is a reader in C, creader.c, which shares no code with otelctx and follows
// docs/wire-format.md. It prints the service of a process, the active spans of its threads and its
// live spans:
//
//	cc -std=c11 -o creader creader.c
//	./creader PID
//
// For each thread it looks up the running goroutine in the goroutine table. The entry refers to the
// cell of a span. If that span has ended, the nearest live ancestor is the active span.
//
// To stay short, it omits some features of a production reader:
//
//   - the goroutine record, which carries the spans that goroutines inherit
//   - attributes, slots of layout 1 and rings that are not advertised
//   - retries while a slot is being written or a span ends
//   - a second mapping that claims to be the process context, as when two libraries publish one
//   - a check that the process is still alive after the last read
//   - a time limit for reads that the process blocks
//
// The only Go code is the test that compiles and runs the reader.
package creader
