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

// refusePlanted returns an error if another user has planted the file for this user to
// write to. Such a file is in a directory in which everybody may create files. These
// are the kernel's own rules (fs.protected_symlinks and its kin), which need not be
// switched on.
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
	return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("user %d has put it in a directory that all can write to: %w", owner, fs.ErrPermission)}
}

func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// mayReplace reports whether a file may have another one take its place: nobody else's file
// is, and no other name leads to it.
func mayReplace(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && st.Nlink == 1
}

func newPending(path string) (pending, error) {
	return renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(filePerms))
}
