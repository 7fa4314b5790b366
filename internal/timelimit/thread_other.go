// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package timelimit

// futex matches no system call, because this platform does not report the system calls of threads.
const futex = -1

// blockSignals does nothing: no process can be read on this platform.
func blockSignals() (restore func()) { return func() {} }
