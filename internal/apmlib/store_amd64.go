// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package apmlib

// store fills the record of the calling thread, and returns its place, the place where
// the goroutine showed something before, and the goroutine's id. A place of 0 says
// that the thread has no record yet.
//
// Sound for the reasons that goruntime gives for its own loads through these offsets.
// The record is inside of r's memory, which stays mapped, whatever the word holds. Go
// does not preempt assembly, so that the goroutine is on the same thread from the first
// instruction to the last.
//
//go:noescape
func store(r *Records, s *Span) (place, old, goid uint64)
