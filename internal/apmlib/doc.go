// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package apmlib provides the shared library in which profilers of Elastic's Universal
// Profiling integration find a process's data. The library has two symbols: one points to the
// process storage, and a thread-local one to the record of each thread.
//
// otelctx ships no such library file. [Generate] creates the file, complete enough for every
// loader. [Install] maps it by hand, as a loader would, and stores the two words that a loader
// would have stored: the address of the storage, and the offset of the thread-local word from the
// thread pointer.
//
// # The thread-local word
//
// The word must be at the same offset from the thread pointer on all threads. With cgo it is a C
// variable (package cgoword). Without cgo, on amd64, the Go runtime makes the thread pointer point
// into m.tls, an array in its own structure of each thread. The runtime uses only the first word of
// m.tls, below the thread pointer, for g. The word at the thread pointer is unused. This is
// verified on each thread before its word is written for the first time, see [Records]. On other
// platforms there is no such word, and Install returns an error.
//
// # One library
//
// A profiler that finds a second library in a process drops the first. So there is one mapping for
// the life of the process. It stays when nothing is published, and is reused later.
//
// The package does not depend on spans: its caller provides the contents of storage and records.
package apmlib
