// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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

// openNamed is openFile for who may not use map_files.
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

// check closes f and fails unless it is a regular file that is the right one, and the
// process is still there: else it may be another process's.
func (p *Process) check(f *os.File, isRight func(fileID) bool) (*os.File, fileID, error) {
	id, err := identify(f)
	if err == nil && !isRight(id) {
		err = fmt.Errorf("%s is another file by now", f.Name())
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
func openIn(root, path string) (*os.File, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, fs.ErrNotExist
	}
	dir, err := openPath(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.Openat2(int(dir.Fd()), "."+path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
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
		return fileID{}, fmt.Errorf("%s is no regular file", f.Name())
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
