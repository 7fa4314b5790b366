// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package patient bounds the time that a read of another process can take.
//
// The system calls that read the memory of a process may wait for pages that the process provides
// itself (userfaultfd, FUSE), for as long as the process likes. They cannot be interrupted, except
// by the end of the caller's own process. So each call runs on its own goroutine and thread, which
// can be abandoned.
//
// The package does not interpret what it reads.
package patient
