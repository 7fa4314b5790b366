// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// threadPointer returns the thread pointer of a child's thread. It stops the thread for that.
func threadPointer(t *testing.T, tid int) (uint64, bool) {
	t.Helper()
	// A tracer is a thread, not a process.
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
