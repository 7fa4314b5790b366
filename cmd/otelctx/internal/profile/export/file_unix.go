// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package export

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/renameio/v2"
)

// refusePlanted returns an error if another user may have planted the file in a world-writable directory with the
// sticky bit, such as /tmp. It trusts this user and the directory's owner. The kernel has similar rules
// (fs.protected_symlinks and others), but they may be disabled.
func refusePlanted(path string) error {
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	file, err := os.Lstat(path)
	if err != nil {
		return err
	}
	const shared = 0o002
	if dir.Mode()&fs.ModeSticky == 0 || dir.Mode().Perm()&shared == 0 {
		return nil
	}
	owner, ok := ownerOf(file)
	dirOwner, ok2 := ownerOf(dir)
	if !ok || !ok2 || owner == os.Geteuid() || owner == dirOwner {
		return nil
	}
	return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("user %d created it in a world-writable directory: %w", owner, fs.ErrPermission)}
}

func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// mayReplace reports whether a file may be replaced. It must belong to this user and have no other hard links.
func mayReplace(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && st.Nlink == 1
}

func newPending(path string) (pending, error) {
	return renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(filePerms))
}
