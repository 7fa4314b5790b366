// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// openFile opens the file behind m: that which is mapped, where the kernel gives it
// (to CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE), deleted or not; the process's
// executable; or the file at the mapping's path as the process sees it, if it still is
// the same.
func (p *Process) openFile(m *mapped) (*os.File, error) {
	dir := fmt.Sprintf("/proc/%d/", p.pid)
	f, err := open(fmt.Sprintf("%smap_files/%x-%x", dir, m.Start, m.Limit))
	if err != nil {
		f, err = p.openOther(dir, m)
	}
	if err != nil {
		return nil, err
	}
	if err := p.proc.Alive(); err != nil { // else it may be another process's
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (p *Process) openOther(dir string, m *mapped) (*os.File, error) {
	var errs []error
	for _, open := range []func() (*os.File, error){
		func() (*os.File, error) { return open(dir + "exe") },
		func() (*os.File, error) { return openIn(dir+"root", m.Path) },
	} {
		f, err := open()
		if err == nil {
			if err = isInode(f, m.inode); err == nil {
				return f, nil
			}
			err = errors.Join(err, f.Close())
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// open does not wait for the other end of a pipe.
func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // G304: in /proc
}

// openIn opens the file at path under the directory root, which no link on the way
// leaves.
func openIn(root, path string) (*os.File, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, fs.ErrNotExist
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	f, err := r.OpenFile("."+path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	return f, errors.Join(err, r.Close())
}

// isInode fails if f is another file than that with this number, or no file.
func isInode(f *os.File, inode uint64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); !ok || s.Ino != inode || !info.Mode().IsRegular() {
		return fmt.Errorf("%s is another file by now", f.Name())
	}
	return nil
}
