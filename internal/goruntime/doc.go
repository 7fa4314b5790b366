// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package goruntime identifies the running goroutine and thread, and finds the offsets at which the
// Go runtime stores their ids. With the ids, a writer can say to which goroutine and thread its
// published data belongs. With the offsets, an external reader can verify that.
//
// Go promises nothing about the fields of its g and m structures, and this package has no table of
// versions. Once per process, [Calibrate] searches them for values that it knows from public
// sources: the goroutine id from [runtime.Stack], the thread id from gettid, and the label pointer
// from runtime/pprof. It accepts an offset only if no other candidate is left after observing
// several goroutines (for facts about threads: on several threads), and if the offset is then
// confirmed on further goroutines. Otherwise it refuses the fact, with a reason. It never guesses.
//
// The package supports linux/amd64 and linux/arm64. On other platforms it compiles, and every fact is
// refused with an error that wraps [errors.ErrUnsupported].
//
// The package imports no other package of otelctx.
package goruntime
