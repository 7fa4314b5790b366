// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package patient bounds the time that a read of another process can take.
//
// The system calls that read the memory of a process may wait for pages that the process provides
// itself (userfaultfd, FUSE), for as long as the process likes. Nothing but the end of the caller's
// own process interrupts them. So each call runs on its own goroutine, and thus its own thread,
// which can be abandoned.
//
// The package does not know what is read.
package patient
