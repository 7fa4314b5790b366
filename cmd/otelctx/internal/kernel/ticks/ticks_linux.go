// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ticks counts how often a sampling timer finds a process executing, independently of package sampler.
//
// A CPU that is stopped by its hypervisor takes no samples, although the kernel may count that time as CPU time of the
// process. Tests therefore compare the number of samples with this count instead of with the CPU time.
//
// The package is for tests only.
package ticks

import (
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Counter counts the ticks of one process.
type Counter struct{ counts *ebpf.Map }

// Start starts to count how often a timer with the given frequency finds the process pid executing. It stops at the
// end of the test. It needs the capabilities of a recorder.
func Start(t testing.TB, pid, frequency int) *Counter {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	must(err)
	t.Cleanup(func() { _ = counts.Close() })
	var namespace unix.Stat_t
	must(unix.Stat("/proc/self/ns/pid", &namespace))
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.PerfEvent, License: "GPL", Instructions: asm.Instructions{
		// struct bpf_pidns_info { u32 pid, tgid; }
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		asm.LoadImm(asm.R1, int64(namespace.Dev), asm.DWord),
		asm.LoadImm(asm.R2, int64(namespace.Ino), asm.DWord),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 8),
		asm.FnGetNsCurrentPidTgid.Call(),
		asm.LoadMem(asm.R1, asm.RFP, -4, asm.Word),
		asm.JNE.Imm(asm.R1, int32(pid), "exit"),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"),
		asm.Return(),
	}})
	must(err)
	t.Cleanup(func() { _ = program.Close() })
	cpus, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*")
	must(err)
	for _, cpu := range cpus {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(cpu), "cpu"))
		must(err)
		fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{
			Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: unix.PERF_ATTR_SIZE_VER5,
			Sample: uint64(frequency), Bits: unix.PerfBitFreq | unix.PerfBitDisabled | unix.PerfBitExcludeIdle,
		}, -1, n, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err == syscall.ENODEV { //nolint:errorlint // not wrapped
			continue // The CPU is offline.
		}
		must(err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		must(unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, program.FD()))
		must(unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0))
	}
	return &Counter{counts}
}

// Count returns the number of ticks so far.
func (c *Counter) Count(t testing.TB) uint64 {
	t.Helper()
	var n uint64
	if err := c.counts.Lookup(uint32(0), &n); err != nil {
		t.Fatal(err)
	}
	return n
}
