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

	"github.com/otelctx/otelctx/internal/elffile"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// openFile finds the file of a region and returns a handle (O_PATH). It does not open the file for reading, because
// opening a device may have side effects.
//
// With CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, the kernel provides the file that is mapped now, even if it has been
// deleted. Otherwise openFile uses the process's executable, or the file at the mapping's path as the process sees
// it. It checks that this is the right file, because another file may have been mapped in the meantime, or the path
// may lead to another file: the file must have the inode of the mapping, or the build ids in the mapped memory. Build
// ids are needed on file systems such as overlayfs and btrfs, where a file and its mapping may differ in the device or
// the inode. Two weaker checks suffice for files that the kernel provides: the process still has the region, or the
// file is its executable with the region's path and inode number.
func (p *Process) openFile(r *Region) (*os.File, fileID, error) { return p.openFirst(p.candidates(r)) }

// candidate is a way to find a file, with a check that it is the right one.
type candidate struct {
	open func() (*os.File, error)
	is   func(*os.File, fileID) bool
}

// candidates returns the ways to find a region's file.
func (p *Process) candidates(r *Region) []candidate {
	path := func(file string) string { return procfs.Host().Path(p.pid, file) }
	var mapped *buildIDs
	isFile := func(f *os.File, id fileID) bool {
		if id.inode == r.inode && unix.Major(id.device) == r.major && unix.Minor(id.device) == r.minor {
			return true
		}
		if mapped == nil {
			mapped = p.mappedBuildIDs(r)
		}
		return mapped.match(f)
	}
	return []candidate{
		{
			func() (*os.File, error) {
				return openPath(path(fmt.Sprintf("map_files/%x-%x", r.mapping.Start, r.mapping.Limit)))
			},
			func(f *os.File, id fileID) bool { return isFile(f, id) || p.isMapped(r) },
		},
		{
			func() (*os.File, error) { return openPath(path("exe")) },
			func(f *os.File, id fileID) bool { return isFile(f, id) || id.inode == r.inode && p.isExecutable(r) },
		},
		{func() (*os.File, error) { return openIn(path("root"), r.mapping.Path) }, isFile},
	}
}

// openFirst returns the first candidate that is the right file.
func (p *Process) openFirst(candidates []candidate) (*os.File, fileID, error) {
	var errs []error
	for _, c := range candidates {
		f, err := c.open()
		if err == nil {
			var id fileID
			if f, id, err = p.check(f, c.is); err == nil {
				return f, id, nil
			}
		}
		errs = append(errs, err)
	}
	return nil, fileID{}, errors.Join(errs...)
}

// isMapped reports whether the process still has the region.
func (p *Process) isMapped(r *Region) bool {
	for m, err := range p.proc.Maps(func(name []byte) bool { return len(name) > 0 }) {
		if err != nil {
			break
		}
		if m.Start == r.mapping.Start {
			return m.Perms.Exec && newRegion(p, m).same(r)
		}
	}
	return false
}

// isExecutable reports whether a region's path is the path of the program that the process runs.
func (p *Process) isExecutable(r *Region) bool {
	path, err := os.Readlink(procfs.Host().Path(p.pid, "exe"))
	return err == nil && strings.TrimSuffix(path, " (deleted)") == r.mapping.Path
}

// buildIDs holds the build ids found in the memory of a process. Unknown ids are empty.
type buildIDs struct{ gnu, golang string }

// match reports whether a file has the known build ids. It returns false if none is known.
func (b *buildIDs) match(f *os.File) bool {
	if b.gnu == "" && b.golang == "" {
		return false
	}
	content, err := reopen(f)
	if err != nil {
		return false
	}
	defer func() { _ = content.Close() }()
	e, err := elffile.Parse(elffile.Whole(content))
	if err != nil {
		return false
	}
	gnu, golang := e.BuildIDs()
	return (b.gnu == "" || b.gnu == gnu) && (b.golang == "" || b.golang == golang)
}

// mappedBuildIDs reads the build ids of a region's file from the memory of the process.
func (p *Process) mappedBuildIDs(r *Region) *buildIDs {
	file := mappedFile{pid: p.pid}
	for m, err := range p.proc.Maps(func(name []byte) bool { return len(name) > 0 }) {
		if err != nil || len(file.mappings) == elffile.MaxSegments {
			break
		}
		if m.Inode == r.inode && m.Major == r.major && m.Minor == r.minor && !m.Perms.Write {
			file.mappings = append(file.mappings, m)
		}
	}
	ids := &buildIDs{}
	if e, err := elffile.Parse(elffile.Whole(file)); err == nil {
		ids.gnu, ids.golang = e.BuildIDs()
	}
	return ids
}

// mappedFile reads a file from the memory of a process that has mapped parts of it.
type mappedFile struct {
	pid      int
	mappings []procfs.Mapping
}

// ReadAt implements [io.ReaderAt].
func (f mappedFile) ReadAt(b []byte, offset int64) (int, error) {
	for _, m := range f.mappings {
		if o := uint64(offset); m.Offset <= o && o-m.Offset < m.End-m.Start {
			start := m.Start + o - m.Offset
			n, err := remotemem.Of(f.pid).ReadAt(b[:min(uint64(len(b)), m.End-start)], int64(start))
			if err == nil && n < len(b) {
				err = io.EOF
			}
			return n, err
		}
	}
	return 0, io.EOF
}

// openDebugFile finds the file at a path in this process's file system (own) or in the file system of p.
func (p *Process) openDebugFile(own bool, path string) (*os.File, fileID, error) {
	root := "/"
	if !own {
		root = procfs.Host().Path(p.pid, "root")
	}
	f, err := openIn(root, path)
	if err != nil {
		return nil, fileID{}, err
	}
	return p.check(f, func(*os.File, fileID) bool { return true })
}

// openPerfMap finds /tmp/perf-PID.map in the file system of the process, with the process's id in its own
// namespace. It must be a regular file of the process's effective user, because any user may create files in /tmp.
func (p *Process) openPerfMap() (*os.File, error) {
	pid, user, err := p.self()
	if err != nil {
		return nil, err
	}
	f, err := openIn(procfs.Host().Path(p.pid, "root"), fmt.Sprintf("/tmp/perf-%d.map", pid), unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f, _, err = p.check(f, func(*os.File, fileID) bool { return st.Uid == user })
	return f, err
}

// self returns the process's id in its own namespace, and its effective user.
func (p *Process) self() (pid int, user uint32, err error) {
	ids, err := p.proc.ThreadIDs(p.pid)
	if err != nil {
		return 0, 0, err
	}
	status, err := os.ReadFile(procfs.Host().Path(p.pid, "status"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		if n, _ := fmt.Sscanf(line, "Uid: %d %d", new(uint32), &user); n == 2 {
			return ids[len(ids)-1], user, nil
		}
	}
	return 0, 0, fmt.Errorf("%s has no Uid", procfs.Host().Path(p.pid, "status"))
}

// check checks that f is a regular file, and the right one according to isRight. It also checks that the process
// still exists, because otherwise f may belong to another process with the same id. If a check fails, it closes f and
// returns an error.
func (p *Process) check(f *os.File, isRight func(*os.File, fileID) bool) (*os.File, fileID, error) {
	id, err := identify(f)
	if err == nil && !isRight(f, id) {
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

// openPath returns a handle (O_PATH) without opening the file itself.
func openPath(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_PATH, 0) //nolint:gosec // G304: in /proc
}

// openIn returns a handle of the file at path below the directory root. Symbolic links cannot leave root.
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

// identify returns the identity of a regular file. It fails for other kinds of files.
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

// reopen opens the file of a handle for reading.
func reopen(f *os.File) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// maxVDSO is the maximum number of bytes of the vDSO that are read.
const maxVDSO = 64 << 10

// readOwnVDSO returns the vDSO that the kernel maps into this process.
func readOwnVDSO() ([]byte, error) {
	self, err := procfs.NewFS("/proc").Self()
	if err != nil {
		return nil, err
	}
	defer func() { _ = self.Close() }()
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	defer func() { _ = memory.Close() }()
	for m, err := range self.Maps(func(name []byte) bool { return string(name) == vdso }) {
		if err != nil {
			return nil, err
		}
		code := make([]byte, min(m.End-m.Start, maxVDSO))
		n, err := memory.ReadAt(code, int64(m.Start))
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return code[:n], nil
	}
	return nil, fs.ErrNotExist
}
