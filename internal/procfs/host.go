// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// host is the file system that [Host] returns.
var host = FS{root: "/proc"}

// Host returns the proc file system in which this program finds processes: the one at /proc, unless
// [UseHost] has chosen another.
func Host() FS { return host }

// UseHost makes [Host] return the proc file system mounted at root. It may belong to another PID
// namespace, like the host's in a container: process ids are then those of that file system. UseHost
// returns an error if no proc file system is mounted there. It must be called before any process is
// opened.
func UseHost(root string) error {
	f := FS{root: root}
	link, err := os.Lstat(filepath.Join(root, "self"))
	if err != nil || link.Mode().Type() != fs.ModeSymlink {
		return fmt.Errorf("no proc file system is mounted at %s", root)
	}
	ids, err := f.ownIDs()
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // It does not exist if this process is outside of the namespace.
		return err
	}
	f.foreign = len(ids) != 1
	host = f
	return nil
}

// Foreign reports whether the process ids in the file system differ from those in system calls of this
// process. Only a file system that [UseHost] has chosen may be foreign.
func (f FS) Foreign() bool { return f.foreign }

// Root returns the directory where the file system is mounted.
func (f FS) Root() string { return f.root }

// Path returns the path of a file of the process pid.
func (f FS) Path(pid int, file string) string {
	return filepath.Join(f.root, strconv.Itoa(pid), file)
}

// SelfID returns the id of this process in the file system, or 0 if it is not there.
func (f FS) SelfID() int {
	ids, err := f.ownIDs()
	if err != nil {
		return 0
	}
	return ids[0]
}

// ownIDs returns the ids of this process, from the one in the namespace of the file system to the one
// in its own namespace. The error wraps [fs.ErrNotExist] if this process is not in the former.
func (f FS) ownIDs() ([]int, error) {
	status, err := os.Open(filepath.Join(f.root, "self", "status"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = status.Close() }()
	ids, err := nsPIDs(io.LimitReader(status, maxStatus))
	if err == nil && len(ids) == 0 {
		ids = []int{os.Getpid()} // The kernel has no PID namespaces.
	}
	return ids, err
}
