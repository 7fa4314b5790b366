// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package seccomp lets a test live under the system call filters that services run
// under. So failing system calls are the kernel's own and not a test's hooks.
//
// It is for tests only, in child processes: a filter cannot be removed.
package seccomp
