// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package apmlib

// store fills the record of the calling thread. It returns the place of that record, the place to
// which the goroutine stored before, and the goroutine id. A place of 0 means that the thread has
// no record yet.
//
// The loads are sound for the reasons given in goruntime, which loads through the same offsets.
// Whatever the word holds, store writes only to records inside r's memory, which stays mapped. Go
// does not preempt assembly, so the goroutine stays on the same thread from the first
// instruction to the last.
//
//go:noescape
func store(r *Records, s *Span) (place, old, goid uint64)
