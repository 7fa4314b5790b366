// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/otelctx/otelctx/internal/procfs"
)

// OpenFiles returns the number of open file descriptors of this process.
func OpenFiles(t testing.TB) int {
	t.Helper()
	// Use os.Open instead of os.ReadDir, so that the runtime's poller exists from the first count on.
	// Its descriptors stay open once it is created, and would otherwise seem to leak.
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	entries, err := dir.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Mappings returns the mappings of this process whose name contains part.
func Mappings(part string) (found []procfs.Mapping, err error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for m, err := range procfs.Maps(f, func(name []byte) bool { return bytes.Contains(name, []byte(part)) }) {
		if err != nil {
			return nil, err
		}
		found = append(found, m)
	}
	return found, nil
}

// WithoutDescriptors calls f while this process cannot open files, and so cannot create memory
// files either.
func WithoutDescriptors(f func() error) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		return err
	}
	return errors.Join(f(), syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
}
