// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package elastic provides a shared library for Elastic's Universal Profiling integration: profilers
// look in this library for the data that a process publishes. It has two symbols. One points to the
// process storage, and the other, which is thread-local, points to the thread's record.
//
// otelctx does not ship this library as a file. [Generate] creates the file, which any loader can
// load. [Install] does not need a loader: it maps the file itself, and stores in it the address of
// the storage and the offset of the thread-local word from the thread pointer.
//
// # The thread-local word
//
// The word must be at the same offset from the thread pointer on all threads. With cgo it is a C
// variable (package cgoword). Without cgo, on amd64, it is a word of the Go runtime's own structure
// for the thread, m. There the thread pointer points into the array m.tls. The runtime keeps g in
// the first word of m.tls, just below the thread pointer. It does not use the second word, at the
// thread pointer, so [Records] uses it, after checking on each thread that it is unused. In all
// other programs there is no such word, and Install returns an error.
//
// # One library
//
// A profiler that finds a second library in a process forgets the first. For this reason a process
// maps the library only once, and keeps it mapped even when nothing is published. Publishing again
// reuses it.
//
// The package does not know spans: its caller provides the contents of the storage and the records.
package elastic
