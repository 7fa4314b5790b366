// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package goruntime identifies the running goroutine and thread, and finds the offsets at which the
// Go runtime stores their ids. Writers can then label published data with its owner, and external
// readers can verify the owner.
//
// Go promises nothing about the fields of its g and m structures, and this package has no table of
// versions. [Calibrate] searches them, once per process, for values that it knows from public
// sources: the goroutine id from [runtime.Stack], the thread id from gettid, and the label pointer
// from runtime/pprof. It accepts an offset only if that is the only candidate left after
// observations of several goroutines on several threads, and if further goroutines have then
// confirmed it. Every other fact is refused, with its own reason. Nothing is guessed.
//
// The package supports linux/amd64 and linux/arm64. On other platforms it compiles, and every fact is
// refused with an error that wraps [errors.ErrUnsupported].
//
// The package knows nothing about spans, and imports nothing from otelctx.
package goruntime
