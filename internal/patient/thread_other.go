// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package patient

// futex is no system call: nothing tells what threads wait for here.
const futex = -1

// leaveSignals does nothing: there is no process to be read here.
func leaveSignals() (restore func()) { return func() {} }
