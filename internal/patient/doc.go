// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package patient bounds the time that other processes can take from one that reads
// them.
//
// The system calls that read the memory of a process may wait for pages which that
// process provides itself (userfaultfd, FUSE). They wait as long as it likes. Nothing
// but the end of the caller's own process ends them. So each call gets a goroutine, and
// with it a thread, that can be done without.
//
// It does not know what is read.
package patient
