// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package creader is a reader in C, creader.c, which shares no code with otelctx and goes
// by docs/wire-format.md. It prints which service a process is, which spans its threads are
// in, as slots show them, and which spans are live:
//
//	cc -std=c11 -o creader creader.c
//	./creader PID
//
// A slot names the cell of its span. The reader believes the slot if the span is live there,
// and if it is over goes on to the spans around it.
//
// It has 150 lines of code, and leaves out some of what a reader for production has:
//
//   - the goroutine record, which shows the spans that goroutines inherit
//   - attributes, slots of layout 1 and rings that are not advertised
//   - a second try where a slot is just being written or a span just ends
//   - a second mapping that claims to be the process context, as there is if two libraries
//     publish one
//   - a check that the process still lives when all is read
//   - a way out of a read that the process makes wait
//
// The Go side of it is the test that compiles and runs it.
package creader
