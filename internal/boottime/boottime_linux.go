// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package boottime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since boot in nanoseconds. If there is no error, it is greater than 0.
func Now() (uint64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("clock_gettime CLOCK_BOOTTIME: %w", err)
	}
	ns := ts.Nano()
	if ns <= 0 {
		// A time namespace can shift the clock below zero.
		return 0, fmt.Errorf("clock_gettime CLOCK_BOOTTIME: %d ns", ns)
	}
	return uint64(ns), nil
}

// Ahead returns how far the CLOCK_BOOTTIME of another process is ahead of the caller's. other is the
// process's directory in /proc. The result is not 0 only if they are in different time namespaces, see
// time_namespaces(7). Ahead returns an error if the difference is unknown.
func Ahead(other string) (time.Duration, error) {
	const own = "/proc/self"
	namespace, err := os.Readlink(other + "/ns/time")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the kernel has no time namespaces, or the process has exited
	}
	if err != nil {
		return 0, err
	}
	if same, err := os.Readlink(own + "/ns/time"); err != nil || same == namespace {
		return 0, err
	}
	// The kernel reports only the offsets of the namespace for a process's future children. They are
	// valid for the process itself if it is in that namespace, too.
	if children, err := os.Readlink(other + "/ns/time_for_children"); err != nil || children != namespace {
		return 0, errors.Join(fmt.Errorf("%s has called unshare: the offset of its time namespace is unknown", other), err)
	}
	theirs, err := Offset(other)
	if err != nil {
		return 0, err
	}
	ours, err := Offset(own)
	return theirs - ours, err
}

// Offset returns the offset of a process's time namespace: how far its CLOCK_BOOTTIME is ahead of
// the kernel's own, see time_namespaces(7). process is the process's directory in /proc. Offset
// returns 0 if that directory has no timens_offsets file, because the kernel has no time namespaces
// or the process has exited. The result is wrong if the process has called unshare itself, because
// the kernel then reports the offset for the process's children.
func Offset(process string) (time.Duration, error) {
	name := process + "/timens_offsets"
	content, err := os.ReadFile(name) //nolint:gosec // G304: the name of a process's directory, and a constant
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the kernel has no time namespaces
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		var seconds, nanoseconds int64
		if _, err := fmt.Sscanf(line, "boottime %d %d", &seconds, &nanoseconds); err == nil {
			return time.Duration(seconds)*time.Second + time.Duration(nanoseconds), nil
		}
	}
	return 0, fmt.Errorf("%s: no boottime in %q", name, content)
}
