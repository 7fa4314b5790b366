// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package apmlib shows profilers of Elastic's Universal Profiling integration the
// shared library that they look for. The library has two symbols. One leads to the
// process's storage, and a thread-local one to the record of each thread.
//
// There is no such library. [Generate] makes its file, complete enough for every loader.
// [Install] maps it by hand, as a loader would, and stores the two words that a loader
// would have stored. They say where the storage is, and how far the thread-local word is
// from the thread pointer.
//
// # The thread-local word
//
// It has to be at the same distance from the thread pointer on all threads. With cgo it
// is C's (package cgoword). Without cgo, on amd64, the Go runtime has the thread pointer
// point into m.tls, in its own structure of each thread. Of that it uses only the first
// word, the one below the thread pointer, for g. The word at the thread pointer is not
// used by anybody. That is not taken for granted: each thread is looked at before its
// word is written for the first time, see [Records]. Everywhere else there is no such
// word, and Install says so.
//
// # One library
//
// A profiler that finds a second library in a process drops the first. There is one
// mapping for the life of the process: it stays when nothing is shown any more, and
// serves again.
//
// It knows nothing of spans: what the storage and the records hold is for the caller to write.
package apmlib
