// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// processWith makes a process whose threads have these status files.
func processWith(t *testing.T, status map[int]string) *Process {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "7", "task", "no thread"), 0o755))
	for tid, text := range status {
		dir := filepath.Join(root, "7", "task", strconv.Itoa(tid))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "status"), []byte(text), 0o600))
	}
	p, err := NewFS(root).Process(7)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

func TestThreads(t *testing.T) {
	status := map[int]string{}
	var want []int
	for tid := 7; tid < 700; tid++ { // more than are read at once
		status[tid] = ""
		want = append(want, tid)
	}
	p := processWith(t, status)
	var got []int
	for tid, err := range p.Threads() {
		require.NoError(t, err)
		got = append(got, tid)
	}
	slices.Sort(got)
	assert.Equal(t, want, got)

	for range p.Threads() {
		break
	}
	require.NoError(t, os.RemoveAll(p.dir.Name()))
	for _, err := range p.Threads() {
		require.ErrorIs(t, err, ErrProcessGone)
	}
}

func TestThreadIDs(t *testing.T) {
	p := processWith(t, map[int]string{
		1:  "Name:\tx\nNStgid:\t900\t9\nNSpid:\t901\t9\nNSpgid:\t1\n",
		2:  "Name:\tx\nNSpid:\t2\n",
		3:  "Name:\tx\nPid:\t3\n", // without PID namespaces
		4:  "",
		5:  "Groups:\t" + strings.Repeat("65534 ", 60000) + "\nNSpid:\t5\t4\t3\t2\n",
		6:  "NSpid:\t6\t-1\n",
		7:  "NSpid:\t6\tx\n",
		8:  "NSpid:" + strings.Repeat(" 1", 1<<19) + "\n",
		9:  "Name:\tNSpid:\t1\nNSpid:\t9", // no line break
		10: strings.Repeat("x\n", 1<<20) + "NSpid:\t5\n",
	})
	for tid, want := range map[int][]int{1: {901, 9}, 2: {2}, 3: {3}, 4: {4}, 5: {5, 4, 3, 2}, 8: {8}, 9: {9}, 10: {10}} {
		got, err := p.ThreadIDs(tid)
		require.NoError(t, err, tid)
		assert.Equal(t, want, got, tid)
	}
	for _, tid := range []int{6, 7} {
		_, err := p.ThreadIDs(tid)
		require.ErrorIs(t, err, ErrMalformed)
	}
	_, err := p.ThreadIDs(11)
	require.ErrorIs(t, err, ErrProcessGone)
}
