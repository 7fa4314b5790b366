// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package allocations

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/elffile"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// Find finds the places for probes in the program that a process runs: those at which an allocation is sampled and, if live
// is set, those at which sampled objects are freed. The process may be hostile, so Find may block on it. The error wraps
// [ErrUnsafe], or is that of reading the process.
//
// A place is safe if all of this holds: The program's table of Go functions names exactly one function so, and its
// code begins with known instructions. The process has mapped this code as executable and not as writable, from the very
// file that was read, which the kernel itself hands out for the mapping. And the code in the memory is that of the
// file, except for the breakpoint of another tracer.
func Find(pid int, live bool) (_ *Sites, err error) {
	// A handle opens no file that a hostile process put here, and always leads to this file.
	handle, err := os.OpenFile(fmt.Sprintf("/proc/%d/exe", pid), unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = handle.Close()
		}
	}()
	executable, err := identify(handle)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("its executable cannot be read: %w", err)
	}
	defer func() { _ = file.Close() }()
	sites := &Sites{handle, map[Function]uint64{}}
	for _, function := range functions(live) {
		f, err := elffile.FindFunction(file, string(function))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnsafe, err)
		}
		push, end, err := firstPush(function, f.Machine, f.Code)
		if err != nil {
			return nil, err
		}
		if err := checkMapped(pid, executable, f.Offset, f.Code[:end], push); err != nil {
			return nil, err
		}
		sites.Offset[function] = f.Offset + uint64(push)
	}
	if live {
		if err := checkLive(file); err != nil {
			return nil, err
		}
	}
	return sites, nil
}

// checkLive checks that the probes of a program find each sampled object that is freed.
func checkLive(file *os.File) error {
	found := map[Function]elffile.Function{}
	for _, function := range []Function{setSpecial, sweep, FreeSpecial} {
		f, err := elffile.FindFunction(file, string(function))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnsafe, err)
		}
		found[function] = f
	}
	if err := checkSpecial(found[setSpecial].Code); err != nil {
		return err
	}
	return checkFrees(found[sweep], found[FreeSpecial])
}

// identity identifies a file.
type identity struct{ device, inode uint64 }

// identify returns the identity of a regular file.
func identify(f *os.File) (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return identity{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return identity{}, fmt.Errorf("%w: %s is not a regular file", ErrUnsafe, f.Name())
	}
	return identity{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // not on every architecture
}

// checkMapped checks that a process has mapped code at an offset of its executable, unchanged. Each mapping of the
// code is checked, because a probe changes all of them.
func checkMapped(pid int, executable identity, offset uint64, code []byte, push int) error {
	process, err := procfs.NewFS("/proc").Process(pid)
	if err != nil {
		return err
	}
	defer func() { _ = process.Close() }()
	found := false
	for m, err := range process.Maps(func(name []byte) bool { return len(name) > 0 }) {
		if err != nil {
			return err
		}
		if !m.Perms.Exec || m.Offset > offset || offset-m.Offset+uint64(len(code)) > m.End-m.Start {
			continue
		}
		// The numbers in maps are not those of the file on overlayfs and btrfs. For root, this is the mapped file in any case.
		mapped, err := mappedFile(pid, m)
		if err != nil {
			return err
		}
		if mapped != executable {
			continue // a library
		}
		if m.Perms.Write || m.Perms.Shared {
			return fmt.Errorf("%w: the process may change its code (%v at %#x)", ErrUnsafe, m.Perms, m.Start)
		}
		memory := make([]byte, len(code))
		if _, err := remotemem.Of(pid).ReadAt(memory, int64(m.Start+offset-m.Offset)); err != nil {
			return err
		}
		if !sameCode(memory, code, push) {
			return fmt.Errorf("%w: the code in memory is %x, but %x in the file", ErrUnsafe, memory, code)
		}
		found = true
	}
	if !found {
		return fmt.Errorf("%w: the process has not mapped its executable there", ErrUnsafe)
	}
	return nil
}

// mappedFile returns the identity of the file that a process has mapped.
func mappedFile(pid int, m procfs.Mapping) (identity, error) {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.Start, m.End), unix.O_PATH, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return identity{}, nil // unmapped meanwhile, or not a file
	case errors.Is(err, fs.ErrPermission):
		return identity{unix.Mkdev(m.Major, m.Minor), m.Inode}, nil // not root: see checkMapped
	case err != nil:
		return identity{}, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return identity{}, err
	}
	return identity{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // not on every architecture
}
