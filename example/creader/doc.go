// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package creader is a reader in C, creader.c, which shares no code with otelctx and goes
// by docs/wire-format.md. It prints which service a process is and which spans its
// threads are in, as their slots show them:
//
//	cc -std=c11 -o creader creader.c
//	./creader PID
//
// A reader for production would read more than that, see the document: the goroutine
// record, which has the spans of goroutines that have moved to another thread too.
//
// The Go side of it is the test that compiles and runs it.
package creader
