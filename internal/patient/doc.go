// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package patient limits how long reading another process may take.
//
// A system call that reads the memory of a process may have to wait for pages that the process
// itself provides (userfaultfd, FUSE), and the process may let it wait forever. Such a call cannot
// be interrupted, except by ending the caller's own process. So each call runs on its own goroutine
// and thread, which can be abandoned.
//
// The package does not read that memory itself: it runs a function that does.
package patient
