// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package apmlib

// store stores s in the record of the calling thread. It returns the place of that record, the
// place to which the goroutine stored before, and the goroutine id. If the thread has no record
// yet, store returns place 0 and stores nothing.
//
// Loading the goroutine id is sound for the reasons given in package goruntime, which uses the same
// offset. Other code may have changed the thread-local word that points to the record. Whatever its
// value is, store writes only inside r's memory, which stays mapped. Go does not preempt assembly, so
// the goroutine cannot move to another thread meanwhile.
//
//go:noescape
func store(r *Records, s *Span) (place, old, goid uint64)
