// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/privilege"
	"github.com/otelctx/otelctx/internal/boottime"
)

// timers are the perf events that interrupt the CPUs, one for each online CPU.
type timers struct {
	frequency int
	program   int         // descriptor of the BPF program that they run
	online    string      // the file that lists the online CPUs
	events    map[int]int // file descriptors by CPU
	mappings  *mappings   // nil if they are not read
}

// onlineFile lists the online CPUs, as in "0-3,5". Unlike files in /proc it is not filtered in containers.
const onlineFile = "/sys/devices/system/cpu/online"

// adjust opens the events of CPUs that have come online and closes those of CPUs that have gone offline. Each
// event runs the BPF program at the given frequency while its CPU is not idle.
func (t *timers) adjust() error {
	content, err := os.ReadFile(t.online)
	if err != nil {
		return err
	}
	online, err := parseProcessors(string(content))
	if err != nil {
		return fmt.Errorf("%s: %w", t.online, err)
	}
	var errs []error
	for cpu, fd := range t.events {
		if !slices.Contains(online, cpu) {
			errs = append(errs, t.close(cpu, fd))
			delete(t.events, cpu)
		}
	}
	var added []int
	for _, cpu := range online {
		if _, ok := t.events[cpu]; ok {
			continue
		}
		fd, err := t.open(cpu)
		if errors.Is(err, unix.ENODEV) {
			continue // The CPU has gone offline meanwhile.
		}
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		t.events[cpu] = fd
		if t.mappings != nil {
			t.mappings.add(cpu, fd)
		}
		added = append(added, fd)
	}
	// Enable all events together, so that no CPU starts much earlier than the others.
	for _, fd := range added {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			errs = append(errs, fmt.Errorf("PERF_EVENT_IOC_ENABLE: %w", err))
		}
	}
	return errors.Join(errs...)
}

// open opens the event of a CPU, disabled.
func (t *timers) open(cpu int) (int, error) {
	attr := &unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Size:   unix.PERF_ATTR_SIZE_VER5,
		Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Sample: uint64(t.frequency),
		Bits:   unix.PerfBitFreq | unix.PerfBitDisabled | unix.PerfBitExcludeIdle,
	}
	if t.mappings != nil {
		// Also record the executable mappings of all processes, with timestamps.
		attr.Bits |= unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitSampleIDAll | unix.PerfBitUseClockID
		attr.Sample_type = unix.PERF_SAMPLE_TIME
		attr.Clockid = unix.CLOCK_BOOTTIME
	}
	fd, err := unix.PerfEventOpen(attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	switch {
	case errors.Is(err, unix.EINVAL):
		return 0, fmt.Errorf("perf_event_open at a frequency of %d, where kernel.perf_event_max_sample_rate is %s: %w",
			t.frequency, sysctl("perf_event_max_sample_rate"), err)
	case errors.Is(err, unix.EACCES):
		return 0, fmt.Errorf("perf_event_open where kernel.perf_event_paranoid is %s: %w", sysctl("perf_event_paranoid"), err)
	case err != nil:
		return 0, fmt.Errorf("perf_event_open on processor %d: %w", cpu, err)
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, t.program); err != nil {
		return 0, errors.Join(fmt.Errorf("PERF_EVENT_IOC_SET_BPF: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// parseProcessors returns the CPU numbers in a list such as "0-3,5".
func parseProcessors(list string) ([]int, error) {
	const maxCPUs = 1 << 16
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		begin, err := strconv.Atoi(first)
		end, err2 := strconv.Atoi(last)
		if err := errors.Join(err, err2); err != nil || end >= maxCPUs {
			return nil, fmt.Errorf("%q is not a list of processors", list)
		}
		for cpu := begin; cpu <= end; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// stop closes the events. When it returns, the BPF program no longer runs.
func (t *timers) stop() error {
	var errs []error
	for cpu, fd := range t.events {
		errs = append(errs, unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_DISABLE, 0), t.close(cpu, fd))
	}
	t.events = nil
	return errors.Join(errs...)
}

func (t *timers) close(cpu, fd int) error {
	if t.mappings != nil {
		t.mappings.remove(cpu)
	}
	return unix.Close(fd)
}

// initPIDNamespace is the inode number of the initial PID namespace (PROC_PID_INIT_INO).
const initPIDNamespace = 0xEFFFFFFC

// pidNamespace returns the inode number of this process's PID namespace, or 0 for the initial namespace.
func pidNamespace() (uint32, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, fmt.Errorf("/proc/self/ns/pid: %w", err)
	}
	if st.Ino == initPIDNamespace {
		return 0, nil
	}
	return uint32(st.Ino), nil
}

// kernelBoottime returns the kernel's CLOCK_BOOTTIME in nanoseconds. In a time namespace,
// time_namespaces(7), processes read a different value.
func kernelBoottime() (uint64, error) {
	now, err := boottime.Now()
	if err != nil {
		return 0, err
	}
	offset, err := boottime.Offset("/proc/self")
	return now - uint64(offset), err
}

// sameMoment reads the wall clock and [kernelBoottime] at the same moment. A preemption between the two
// readings would shift the times of all samples, so sameMoment reads both clocks several times and returns
// the pair that took the least time.
func sameMoment() (now time.Time, boot uint64, err error) {
	const attempts = 5
	shortest := time.Duration(math.MaxInt64)
	for range attempts {
		before := time.Now()
		then, err := kernelBoottime()
		if err != nil {
			return time.Time{}, 0, err
		}
		if took := time.Since(before); took < shortest {
			shortest, now, boot = took, before, then
		}
	}
	return now, boot, nil
}

// needed lists the capabilities that sampling requires.
var needed = []struct {
	name string
	bit  int
}{
	{"CAP_BPF", unix.CAP_BPF},
	{"CAP_PERFMON", unix.CAP_PERFMON},
}

// permitted returns an error that names the missing capabilities, or nil if none is missing. Allocations need more
// than CPU time.
func permitted(allocations bool) error {
	usable, err := privilege.Usable()
	if err != nil {
		return err
	}
	if usable.Has(unix.CAP_SYS_ADMIN) {
		return nil // CAP_SYS_ADMIN includes all.
	}
	if allocations {
		return ErrProbeNotPermitted
	}
	var missing []string
	for _, c := range needed {
		if !usable.Has(c.bit) {
			missing = append(missing, c.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: without %s", ErrNotPermitted, strings.Join(missing, " and "))
}

// unlockMemory lifts the limit on locked memory. Linux before 5.11 charges BPF programs and maps to it;
// raising it above the hard limit requires CAP_SYS_RESOURCE.
func unlockMemory() error {
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
}

// explain wraps an error of the kernel in ErrNotPermitted or errors.ErrUnsupported if missing permission or
// support is the cause.
func explain(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return err // The verifier has accepted the program, so its log is irrelevant.
	case errors.As(err, &refused) && len(refused.Log) > 0:
		// The verifier's error is EACCES even for a privileged caller.
		return fmt.Errorf("%w: the kernel's verifier does not accept the program: %w", errors.ErrUnsupported, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w, despite CAP_BPF and CAP_PERFMON (a user namespace, a seccomp profile, the "+
			"lockdown mode or, above 2, kernel.perf_event_paranoid may be in the way): %w", ErrNotPermitted, err)
	case errors.Is(err, ebpf.ErrNotSupported) && fewFiles():
		// The probe for the feature needed files too. What it says about kernel versions is wrong.
		return fmt.Errorf("load the BPF program: %w", unix.EMFILE)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	case errors.Is(err, fs.ErrNotExist) && !exists(onlineFile):
		return fmt.Errorf("%w: %w", ErrNoSysfs, err)
	default:
		return err
	}
}

// fewFiles reports whether this process can open fewer files than Open may need.
func fewFiles() bool {
	const fixed = 32 // besides the events, of which there is one for each processor
	for range fixed + runtime.NumCPU() {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return errors.Is(err, unix.EMFILE)
		}
		defer func() { _ = unix.Close(fd) }()
	}
	return false
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// maxFrames returns the maximum number of frames in the stacks that the kernel records.
func maxFrames() int {
	if n, err := strconv.Atoi(sysctl("perf_event_max_stack")); err == nil && n > 0 {
		return min(n, MaxFrames)
	}
	return MaxFrames
}

// sysctl returns a setting in /proc/sys/kernel, or "not known" if it cannot be read.
func sysctl(name string) string {
	b, err := fs.ReadFile(os.DirFS("/proc/sys/kernel"), name)
	if err != nil {
		return "not known"
	}
	return strings.TrimSpace(string(b))
}
