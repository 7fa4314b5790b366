// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package apmlib provides the shared library in which profilers of Elastic's Universal
// Profiling integration find a process's data. The library has two symbols: one points to the
// process storage, and a thread-local one to the record of each thread.
//
// otelctx does not ship this library as a file. [Generate] creates it, complete enough for every
// loader. [Install] does the work of a loader: it maps the file, and stores the address of the
// storage and the offset of the thread-local word from the thread pointer.
//
// # The thread-local word
//
// The word must be at the same offset from the thread pointer on all threads. With cgo it is a C
// variable (package cgoword). Without cgo, on amd64, the Go runtime makes the thread pointer point
// into m.tls, an array in m, its own structure for each thread. The runtime keeps g in the first word
// of m.tls, just below the thread pointer, and does not use the second word, which is at the thread
// pointer. [Records] verifies that the word is unused on each thread before it first writes to it.
// On other platforms there is no such word, and Install returns an error.
//
// # One library
//
// A profiler that finds a second library in a process drops the first. So a process maps the library
// only once. The mapping stays when nothing is published anymore, and later publications reuse it.
//
// The package does not depend on spans: its caller provides the contents of storage and records.
package apmlib
