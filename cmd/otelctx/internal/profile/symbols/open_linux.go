// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// openFile finds the file behind a region. With CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE the
// kernel gives the file that is mapped, deleted or not. Else it is the process's executable,
// or the file at the mapping's path as the process sees it, if that still is the same. It
// is not opened for reading yet: a device may act when it is.
func (p *Process) openFile(r *Region) (*os.File, fileID, error) {
	f, err := openPath(fmt.Sprintf("/proc/%d/map_files/%x-%x", p.pid, r.mapping.Start, r.mapping.Limit))
	if err != nil {
		return p.openNamed(r)
	}
	// The kernel leads to the very file.
	return p.check(f, func(fileID) bool { return true })
}

// openNamed is openFile for users that may not use map_files.
func (p *Process) openNamed(r *Region) (*os.File, fileID, error) {
	dir := fmt.Sprintf("/proc/%d/", p.pid)
	sameInode := func(id fileID) bool { return id.inode == r.inode }
	f, errExe := openPath(dir + "exe")
	if errExe == nil {
		// What was executed: the kernel leads to the very file, if it is this one.
		var id fileID
		if f, id, errExe = p.check(f, sameInode); errExe == nil {
			return f, id, nil
		}
	}
	f, err := openIn(dir+"root", r.mapping.Path)
	if err != nil {
		return nil, fileID{}, errors.Join(errExe, err)
	}
	f, id, err := p.check(f, func(id fileID) bool {
		return sameInode(id) && unix.Major(id.device) == r.major && unix.Minor(id.device) == r.minor
	})
	if err != nil {
		return nil, fileID{}, errors.Join(errExe, err)
	}
	return f, id, nil
}

// openDebugFile names the file at a path as this process sees it, or as p does.
func (p *Process) openDebugFile(own bool, path string) (*os.File, fileID, error) {
	root := "/"
	if !own {
		root = fmt.Sprintf("/proc/%d/root", p.pid)
	}
	f, err := openIn(root, path)
	if err != nil {
		return nil, fileID{}, err
	}
	return p.check(f, func(fileID) bool { return true })
}

// openPerfMap names /tmp/perf-PID.map as the process sees it, by the id that the process has for
// itself. It is a regular file of the process's user: in /tmp anybody may have made it.
func (p *Process) openPerfMap() (*os.File, error) {
	pid, user, err := p.self()
	if err != nil {
		return nil, err
	}
	f, err := openIn(fmt.Sprintf("/proc/%d/root", p.pid), fmt.Sprintf("/tmp/perf-%d.map", pid), unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f, _, err = p.check(f, func(fileID) bool { return st.Uid == user })
	return f, err
}

// self returns the id that the process has for itself, and its effective user.
func (p *Process) self() (pid int, user uint32, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		switch fields := strings.Fields(line); {
		case len(fields) > 2 && fields[0] == "Uid:":
			n, err := strconv.ParseUint(fields[2], 10, 32)
			if err != nil {
				return 0, 0, err
			}
			user = uint32(n)
		case len(fields) > 1 && fields[0] == "NSpid:":
			if pid, err = strconv.Atoi(fields[len(fields)-1]); err != nil {
				return 0, 0, err
			}
		}
	}
	if pid == 0 {
		return 0, 0, fmt.Errorf("/proc/%d/status has no NSpid", p.pid)
	}
	return pid, user, nil
}

// check closes f and fails unless it is a regular file and the right one, and the
// process is still there. Otherwise the file may be another process's.
func (p *Process) check(f *os.File, isRight func(fileID) bool) (*os.File, fileID, error) {
	id, err := identify(f)
	if err == nil && !isRight(id) {
		err = fmt.Errorf("%s is another file now", f.Name())
	}
	if err == nil {
		err = p.proc.Alive()
	}
	if err != nil {
		return nil, fileID{}, errors.Join(err, f.Close())
	}
	return f, id, nil
}

// openPath names a file without opening it.
func openPath(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_PATH, 0) //nolint:gosec // G304: in /proc
}

// openIn names the file at path under the directory root, which no link on the way leaves.
func openIn(root, path string, flags ...uint64) (*os.File, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, fs.ErrNotExist
	}
	dir, err := openPath(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	how := uint64(unix.O_PATH | unix.O_CLOEXEC)
	for _, f := range flags {
		how |= f
	}
	fd, err := unix.Openat2(int(dir.Fd()), "."+path, &unix.OpenHow{
		Flags: how, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// identify returns what tells a regular file from others, and fails for what is none.
func identify(f *os.File) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileID{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fileID{}, fmt.Errorf("%s is not a regular file", f.Name())
	}
	return fileID{device: uint64(st.Dev), inode: st.Ino, size: st.Size, changed: time.Unix(st.Ctim.Unix()).UnixNano()}, nil //nolint:unconvert // not on every architecture
}

// reopen opens a file for reading that has been named.
func reopen(f *os.File) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// maxVDSO is the size, in bytes, that is read of it.
const maxVDSO = 64 << 10

// readOwnVDSO returns the code that the kernel maps into this process.
func readOwnVDSO() ([]byte, error) {
	self, err := procfs.NewFS("/proc").Process(os.Getpid())
	if err != nil {
		return nil, err
	}
	defer func() { _ = self.Close() }()
	for m, err := range self.Maps(func(name []byte) bool { return string(name) == vdso }) {
		if err != nil {
			return nil, err
		}
		code := make([]byte, min(m.End-m.Start, maxVDSO))
		n, err := remotemem.Of(os.Getpid()).ReadAt(code, int64(m.Start))
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return code[:n], nil
	}
	return nil, fs.ErrNotExist
}
