// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSeccomp checks that the default seccomp profile allows the recorder's system calls, so that
// the recorder need not run unconfined. Docker has had this profile since 23.0, and containerd
// since 1.6.9.
func TestSeccomp(t *testing.T) {
	allows := func(capabilities ...string) func(call string) bool {
		profile, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities},
		}})
		require.NoError(t, err)
		require.Equal(t, specs.ActErrno, profile.DefaultAction)
		return func(call string) bool {
			return slices.ContainsFunc(profile.Syscalls, func(s specs.LinuxSyscall) bool {
				return s.Action == specs.ActAllow && len(s.Args) == 0 && slices.Contains(s.Names, call)
			})
		}
	}
	other := allows()
	for _, r := range []recorder{record, agent} {
		var names []string
		for _, c := range r.capabilities {
			names = append(names, "CAP_"+string(c))
		}
		recorder := allows(names...)
		for _, call := range []string{"bpf", "perf_event_open"} {
			assert.True(t, recorder(call), call)
			assert.False(t, other(call), "%s: allowed for others", call)
		}
		for _, call := range []string{"process_vm_readv", "openat2", "prlimit64"} {
			assert.True(t, recorder(call), call)
		}
	}
	// These are the system calls with which a service publishes.
	for _, call := range []string{
		"openat", "fstat", "read", "close", "pipe2", "write", "clock_gettime", "getitimer", "gettid", "getpid", "prlimit64", "getrlimit",
		"memfd_create", "ftruncate", "fcntl", "mmap", "munmap", "madvise", "prctl",
	} {
		assert.True(t, other(call), call)
	}
}
