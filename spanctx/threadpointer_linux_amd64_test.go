// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// threadPointer stops a thread of a child process and returns its thread pointer.
func threadPointer(t *testing.T, tid int) (uint64, bool) {
	t.Helper()
	// All ptrace calls must come from the same thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(t, syscall.PtraceAttach(tid))
	const allThreads = 0x40000000 // __WALL
	_, err := syscall.Wait4(tid, new(syscall.WaitStatus), allThreads, nil)
	require.NoError(t, err)
	var regs syscall.PtraceRegs
	err = syscall.PtraceGetRegs(tid, &regs)
	require.NoError(t, syscall.PtraceDetach(tid))
	require.NoError(t, err)
	return regs.Fs_base, true
}
