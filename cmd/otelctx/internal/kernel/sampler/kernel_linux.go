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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/privilege"
	"github.com/otelctx/otelctx/internal/boottime"
)

// timers are the events that interrupt, one of each processor.
type timers struct {
	frequency int
	program   int         // what they run
	online    string      // the file that lists the processors
	events    map[int]int // file descriptors by processor
	mappings  *mappings   // nil if nobody wants them
}

// onlineFile has the processors that run, as "0-3,5". Unlike in /proc none are left out.
const onlineFile = "/sys/devices/system/cpu/online"

// adjust has the program run on each processor that is there, so many times in a second,
// whenever it is not idle. It is called again when others may be there.
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
			continue // It has gone meanwhile.
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
	// All together, so that none is ahead by the time that the others take.
	for _, fd := range added {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			errs = append(errs, fmt.Errorf("PERF_EVENT_IOC_ENABLE: %w", err))
		}
	}
	return errors.Join(errs...)
}

// open opens the event of a processor, which does not run yet.
func (t *timers) open(cpu int) (int, error) {
	attr := &unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Size:   unix.PERF_ATTR_SIZE_VER5,
		Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Sample: uint64(t.frequency),
		Bits:   unix.PerfBitFreq | unix.PerfBitDisabled | unix.PerfBitExcludeIdle,
	}
	if t.mappings != nil {
		// The kernel records the executable mappings of all processes, with the time.
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

// parseProcessors returns the numbers in a list such as "0-3,5".
func parseProcessors(list string) ([]int, error) {
	const most = 1 << 16
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err := errors.Join(err, err2); err != nil || to >= most {
			return nil, fmt.Errorf("%q is not a list of processors", list)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// stop ends the events. When it returns none of them runs any more.
func (t *timers) stop() error {
	var errs []error
	for cpu, fd := range t.events {
		errs = append(errs, unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_DISABLE, 0), t.close(cpu, fd))
	}
	t.events = nil
	return errors.Join(errs...)
}

// close closes the event of a processor.
func (t *timers) close(cpu, fd int) error {
	if t.mappings != nil {
		t.mappings.remove(cpu)
	}
	return unix.Close(fd)
}

// initPIDNamespace is the number of the first PID namespace (PROC_PID_INIT_INO).
const initPIDNamespace = 0xEFFFFFFC

// pidNamespace returns the number of this process's PID namespace, 0 if it is the first
// one.
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

// kernelBoottime returns CLOCK_BOOTTIME in nanoseconds as the kernel has it, which in a
// time namespace, time_namespaces(7), is not what processes are told.
func kernelBoottime() (uint64, error) {
	now, err := boottime.Now()
	if err != nil {
		return 0, err
	}
	offset, err := boottime.Offset("/proc/self")
	return now - uint64(offset), err
}

// sameMoment returns one moment on two clocks: time's, and [kernelBoottime]. It looks at
// both a few times and takes the shortest look. This process may have to wait in between,
// and all samples would be that much too early.
func sameMoment() (now time.Time, boot uint64, err error) {
	const looks = 5
	shortest := time.Duration(math.MaxInt64)
	for range looks {
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

// needed are the capabilities that sampling takes.
var needed = []struct {
	name string
	bit  int
}{
	{"CAP_BPF", unix.CAP_BPF},
	{"CAP_PERFMON", unix.CAP_PERFMON},
}

// permitted returns an error that names the capabilities that are missing, if any are.
func permitted() error {
	usable, err := privilege.Usable()
	if err != nil {
		return err
	}
	if usable.Has(unix.CAP_SYS_ADMIN) {
		return nil // It stands for both.
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

// unlockMemory lets this process lock as much memory as it likes. Linux before 5.11 counts
// what programs and their maps take as that; more than the usual limit takes
// CAP_SYS_RESOURCE.
func unlockMemory() error {
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
}

// explain wraps what the kernel says when it does not permit something, or does not know
// it.
func explain(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return err // A program that was accepted needs them. The log is the verifier's, and tells nothing.
	case errors.As(err, &refused) && len(refused.Log) > 0:
		// It says EACCES as well, whoever asks.
		return fmt.Errorf("%w: the kernel's verifier does not accept the program: %w", errors.ErrUnsupported, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w, although CAP_BPF and CAP_PERFMON are there (a user namespace, a seccomp profile, the "+
			"lockdown mode or, above 2, kernel.perf_event_paranoid may be in the way): %w", ErrNotPermitted, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	default:
		return err
	}
}

// maxFrames returns how many frames of a stack the kernel gives at most.
func maxFrames() int {
	if n, err := strconv.Atoi(sysctl("perf_event_max_stack")); err == nil && n > 0 {
		return min(n, MaxFrames)
	}
	return MaxFrames
}

// sysctl returns a setting of the kernel for people.
func sysctl(name string) string {
	b, err := fs.ReadFile(os.DirFS("/proc/sys/kernel"), name)
	if err != nil {
		return "not known"
	}
	return strings.TrimSpace(string(b))
}
