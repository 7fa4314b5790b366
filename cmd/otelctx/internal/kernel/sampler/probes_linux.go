// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/privilege"
)

const (
	// allocationBuffer is the default size of the buffer for samples of allocations. A service that allocates 1 GB/s
	// at Go's default rate takes 2,000 samples a second, but with a lower runtime.MemProfileRate it takes many more.
	allocationBuffer = 4 << 20
	// preemptibleWorks is PREEMPTIBLE_WORKS in sampler.bpf.c.
	preemptibleWorks = 4
)

// probes are the probes in processes, at most one for each process and event. A nil *probes has none.
type probes struct {
	programs map[Event]*ebpf.Program
	events   map[int]map[Event]int // file descriptors by process id and event
}

// Probe reports an event whenever the watched process is about to execute the instruction at an offset of file,
// which the process has mapped. The instruction must be the push of the frame pointer in runtime.mProf_Malloc for
// [Allocation], in runtime.freeSpecial for [Freed], or in runtime.nextMarkBitArenaEpoch for [Swept], and the caller must
// have checked that. The kernel changes the first byte of the instruction in the memory of this process only, and
// restores it when the sampler is stopped, or when this process ends in whatever way.
//
// The file may be open with O_PATH: the kernel uses the file itself, whatever its name stands for now.
func (s *Sampler) Probe(image Image, event Event, file *os.File, offset uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || s.stopped:
		return os.ErrClosed
	case s.probes == nil || s.probes.programs[event] == nil:
		return errors.New("a probe for an event that Config does not ask for")
	}
	return privilege.Do(func() error { return s.probes.add(image.PID, event, file, offset) })
}

// add sets the probe for an event in a process. It replaces the one that the process had.
func (p *probes) add(pid int, event Event, file *os.File, offset uint64) error {
	const typeFile = "/sys/bus/event_source/devices/uprobe/type"
	content, err := os.ReadFile(typeFile)
	if err != nil {
		return fmt.Errorf("probes in processes (CONFIG_UPROBE_EVENTS): %w: %w", errors.ErrUnsupported, err)
	}
	kind, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 32)
	if err != nil {
		return fmt.Errorf("%s: %w", typeFile, err)
	}
	path, err := unix.BytePtrFromString(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return err
	}
	attr := &unix.PerfEventAttr{
		Type: uint32(kind), Size: unix.PERF_ATTR_SIZE_VER5, Sample: 1, Bits: unix.PerfBitDisabled,
		Ext1: uint64(uintptr(unsafe.Pointer(path))), // uprobe_path: the kernel copies the text during the call
		Ext2: offset,
	}
	fd, err := unix.PerfEventOpen(attr, pid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(path)
	runtime.KeepAlive(file)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: perf_event_open of a probe: %w", ErrNotPermitted, err)
	case err != nil:
		return fmt.Errorf("perf_event_open of a probe: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, p.programs[event].FD()); err != nil {
		return errors.Join(fmt.Errorf("PERF_EVENT_IOC_SET_BPF: %w", err), unix.Close(fd))
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		return errors.Join(fmt.Errorf("PERF_EVENT_IOC_ENABLE: %w", err), unix.Close(fd))
	}
	if p.events[pid] == nil {
		p.events[pid] = map[Event]int{}
	}
	old, replaced := p.events[pid][event]
	p.events[pid][event] = fd
	if replaced {
		return unix.Close(old)
	}
	return nil
}

// remove removes all probes from a process.
func (p *probes) remove(pid int) error {
	if p == nil {
		return nil
	}
	var errs []error
	for _, fd := range p.events[pid] {
		errs = append(errs, unix.Close(fd))
	}
	delete(p.events, pid)
	return errors.Join(errs...)
}

// stop removes all probes. When it returns, the BPF program no longer runs.
func (p *probes) stop() error {
	if p == nil {
		return nil
	}
	var errs []error
	for pid := range p.events {
		errs = append(errs, p.remove(pid))
	}
	return errors.Join(errs...)
}
