// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package goruntime tells which goroutine and which thread is running, and where the Go runtime
// keeps that in memory. So writers can label what they publish with its owner, and external readers
// can check it.
//
// Go promises nothing about the fields of its g and m structures, and this package keeps no table
// of versions. [Calibrate] searches them, once per process, for values that it knows from public
// sources. These are the goroutine id from [runtime.Stack], the thread id from gettid, and the
// label pointer from runtime/pprof. It accepts a place only if it is the one candidate left after
// several goroutines on several threads, and further goroutines have then confirmed it. Anything
// else is refused with a reason, each fact by itself; nothing is ever guessed.
//
// Supported are linux/amd64 and linux/arm64. Everywhere else the package compiles, and every fact is refused with an
// error that wraps [errors.ErrUnsupported].
//
// It knows nothing of spans, and imports nothing of otelctx.
package goruntime
