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
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/boottime"
)

// timers are the events that interrupt, one of each processor.
type timers []int

// startTimers has program run so many times in a second on each processor that is
// there, whenever it is not idle.
func startTimers(frequency, program int) (_ timers, err error) {
	processors, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	var t timers
	defer func() {
		if err != nil {
			err = errors.Join(err, t.stop())
		}
	}()
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Size:   unix.PERF_ATTR_SIZE_VER1,
		Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Sample: uint64(frequency),
		Bits:   unix.PerfBitFreq | unix.PerfBitDisabled | unix.PerfBitExcludeIdle,
	}
	for cpu := range processors {
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ENODEV) {
			continue // It could be there, but is not.
		}
		if errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("perf_event_open at a frequency of %d, where kernel.perf_event_max_sample_rate is %s: %w",
				frequency, sysctl("perf_event_max_sample_rate"), err)
		}
		if errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("perf_event_open where kernel.perf_event_paranoid is %s: %w", sysctl("perf_event_paranoid"), err)
		}
		if err != nil {
			return nil, fmt.Errorf("perf_event_open on processor %d: %w", cpu, err)
		}
		t = append(t, fd)
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, program); err != nil {
			return nil, fmt.Errorf("PERF_EVENT_IOC_SET_BPF: %w", err)
		}
	}
	// All together, so that none is ahead by the time that the others take.
	for _, fd := range t {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			return nil, fmt.Errorf("PERF_EVENT_IOC_ENABLE: %w", err)
		}
	}
	return t, nil
}

// stop ends the events. When it returns none of them runs any more.
func (t *timers) stop() error {
	var errs []error
	for _, fd := range *t {
		errs = append(errs, unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_DISABLE, 0), unix.Close(fd))
	}
	*t = nil
	return errors.Join(errs...)
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
	const name = "/proc/self/timens_offsets"
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return now, nil // A kernel without time namespaces.
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var seconds, nanoseconds int64
		if _, err := fmt.Sscanf(line, "boottime %d %d", &seconds, &nanoseconds); err == nil {
			return now - uint64(seconds*int64(time.Second)+nanoseconds), nil
		}
	}
	return 0, fmt.Errorf("%s: no boottime in %q", name, b)
}

// sameMoment returns one moment on two clocks: time's, and [kernelBoottime]. Of a few looks
// at both it takes the shortest, since this process may have to wait in between, and all
// samples would be that much too early.
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
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	has := func(bit int) bool { return data[bit/32].Effective&(1<<(bit%32)) != 0 }
	if has(unix.CAP_SYS_ADMIN) {
		return nil // It stands for both.
	}
	var missing []string
	for _, c := range needed {
		if !has(c.bit) {
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

// sysctl returns a setting of the kernel for people.
func sysctl(name string) string {
	b, err := fs.ReadFile(os.DirFS("/proc/sys/kernel"), name)
	if err != nil {
		return "not known"
	}
	return strings.TrimSpace(string(b))
}
