// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/processcontext"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"

	"github.com/otelctx/otelctx/reader"
)

// observation is the result of a read with either reader.
type observation struct {
	message       *processcontextpb.ProcessContext
	publishedAtNS uint64
	// payloadSize is the size of the message in bytes, or 0 if the reader does not report it.
	payloadSize int
}

// readFunc reads a process once, with one of the readers.
type readFunc func() (observation, error)

// ourReader returns a function that reads p with package reader.
func ourReader(t *testing.T, p *reader.Process) readFunc {
	return func() (observation, error) {
		pc, err := p.ProcessContext(t.Context())
		if err != nil {
			return observation{}, err
		}
		return observation{&processcontextpb.ProcessContext{Resource: pc.Resource, Attributes: pc.Attributes}, pc.PublishedAtNS, len(pc.Payload)}, nil
	}
}

// officialReader returns a function that reads process pid with the eBPF profiler's packages. It
// looks up the mapping only once, before it returns the function.
func officialReader(t *testing.T, pid int) readFunc {
	t.Helper()
	address := officialAddress(t, pid)
	memory := remotememory.NewProcessVirtualMemory(libpf.PID(pid))
	return func() (observation, error) {
		info, err := processcontext.Read(address, memory, 0, 0)
		if err != nil {
			return observation{}, err
		}
		return observation{message: info.Context, publishedAtNS: info.PublishedAtNs}, nil
	}
}

// open opens process pid with package reader, and closes it at the end of the test.
func open(t *testing.T, pid int) *reader.Process {
	t.Helper()
	p, err := reader.Open(pid)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// officialAddress returns the address of the only mapping of process pid that the eBPF profiler
// accepts as a process context.
func officialAddress(t *testing.T, pid int) libpf.Address {
	t.Helper()
	addresses := officialAddresses(t, pid)
	require.Len(t, addresses, 1, "mappings that the profiler accepts as a process context")
	return addresses[0]
}

// officialAddresses returns the addresses of all mappings of process pid that the eBPF profiler
// accepts as a process context. It does not use internal/procfs, so that the result is independent
// of our code.
func officialAddresses(t *testing.T, pid int) []libpf.Address {
	t.Helper()
	maps, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	require.NoError(t, err)
	var addresses []libpf.Address
	for line := range strings.Lines(string(maps)) {
		// Address range, permissions, offset, device, inode, and after padding the name:
		// 00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 6)
		if len(fields) < 6 {
			continue
		}
		name := strings.TrimLeft(fields[5], " ")
		if !processcontext.IsContextMapping(strings.Contains(fields[1], "x"), name) {
			continue
		}
		start, _, _ := strings.Cut(fields[0], "-")
		address, err := strconv.ParseUint(start, 16, 64)
		require.NoError(t, err)
		addresses = append(addresses, libpf.Address(address))
	}
	return addresses
}
