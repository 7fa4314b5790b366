// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeRoot creates a directory with these files that serves as a proc file system.
func fakeRoot(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return root
}

func openIn(t *testing.T, root string, pid int) *Process {
	t.Helper()
	p, err := NewFS(root).Process(pid)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

// collectIDs returns the ids in a sequence, sorted, and the first error.
func collectIDs(seq iter.Seq2[int, error]) (ids []int, failed error) {
	for id, err := range seq {
		if err != nil {
			return ids, err
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

// PIDs and Threads yield the numeric names in a directory, even if it takes several reads to list
// them.
func TestIDs(t *testing.T) {
	files := map[string]string{
		"self/stat": "", "sys/kernel/pid_max": "", "uptime": "", "0/stat": "", "-5/stat": "", "12x/stat": "", "1.5/stat": "",
		"99999999999999999999/stat": "", "7/task/no thread/status": "",
	}
	var want []int
	for id := 1; id <= 600; id += 2 {
		files[strconv.Itoa(id)+"/stat"] = ""
		files["7/task/"+strconv.Itoa(id)+"/status"] = ""
		want = append(want, id)
	}
	root := fakeRoot(t, files)
	p := openIn(t, root, 7)
	for name, ids := range map[string]iter.Seq2[int, error]{"processes": NewFS(root).PIDs(), "threads": p.Threads()} {
		got, err := collectIDs(ids)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
		for range ids {
			break // a caller may stop early
		}
	}
	_, err := collectIDs(NewFS(filepath.Join(root, "absent")).PIDs())
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = collectIDs(NewFS(filepath.Join(root, "uptime")).PIDs())
	require.Error(t, err, "a file is not a proc file system")
	require.NoError(t, os.RemoveAll(p.dir.Name()))
	_, err = collectIDs(p.Threads())
	require.ErrorIs(t, err, ErrProcessGone)
}

func TestProcess(t *testing.T) {
	root := fakeRoot(t, map[string]string{
		"7/stat": "7 (x) S", "7/maps": goodLine + "2000-3000 rw-p 00000000 00:01 9 /memfd:OTEL_CTX (deleted)\n",
		"8/stat": "8 (x) S", "8/maps": goodLine + "broken\n",
		"9/stat": "9 (x) S",
	})
	p := openIn(t, root, 7)
	for range 2 { // each sequence begins at the start of the directory
		got, err := collect(t, p.Maps(all))
		require.NoError(t, err)
		require.Len(t, got, 2)
		assert.Equal(t, "/memfd:OTEL_CTX (deleted)", got[1].Name)
	}
	for range p.Maps(all) {
		break
	}
	got, err := collect(t, openIn(t, root, 8).Maps(all))
	require.ErrorIs(t, err, ErrMalformed)
	require.NotErrorIs(t, err, ErrProcessGone)
	assert.Len(t, got, 1)

	withoutMaps := openIn(t, root, 9)
	require.NoError(t, withoutMaps.Alive())
	_, err = collect(t, withoutMaps.Maps(all))
	require.ErrorIs(t, err, ErrProcessGone)
	for _, pid := range []int{10, 0, -1} {
		_, err := NewFS(root).Process(pid)
		require.ErrorIs(t, err, ErrProcessGone, "pid %d", pid)
	}

	// Another process reuses the id.
	require.NoError(t, p.Alive())
	require.NoError(t, os.Rename(filepath.Join(root, "7"), filepath.Join(root, "old")))
	require.NoError(t, os.Remove(filepath.Join(root, "old", "stat")))
	require.NoError(t, os.Rename(filepath.Join(root, "8"), filepath.Join(root, "7")))
	require.NoError(t, openIn(t, root, 7).Alive())
	require.ErrorIs(t, p.Alive(), ErrProcessGone)
}

func TestThreadIDs(t *testing.T) {
	const malformed, gone = -1, -2
	tests := []struct {
		status string
		want   []int
	}{
		0:  {want: []int{gone}},
		1:  {"Name:\tx\nNStgid:\t900\t9\nNSpid:\t901\t9\nNSpgid:\t1\n", []int{901, 9}},
		2:  {"Name:\tx\nNSpid:\t2\n", []int{2}},
		3:  {"Name:\tx\nPid:\t3\n", []int{3}}, // without PID namespaces
		4:  {"\n", []int{4}},
		5:  {"Groups:\t" + strings.Repeat("65534 ", 60000) + "\nNSpid:\t5\t4\t3\t2\n", []int{5, 4, 3, 2}},
		6:  {"NSpid:\t6\t-1\n", []int{malformed}},
		7:  {"NSpid:\t6\tx\n", []int{malformed}},
		8:  {"NSpid:" + strings.Repeat(" 1", 1<<19) + "\n", []int{8}},
		9:  {"Name:\tNSpid:\t1\nNSpid:\t9", []int{9}}, // no line break
		10: {strings.Repeat("x\n", 1<<20) + "NSpid:\t5\n", []int{10}},
	}
	files := map[string]string{}
	for tid, tt := range tests[1:] {
		files["7/task/"+strconv.Itoa(tid+1)+"/status"] = tt.status
	}
	p := openIn(t, fakeRoot(t, files), 7)
	for tid, tt := range tests {
		got, err := p.ThreadIDs(tid)
		switch tt.want[0] {
		case malformed:
			require.ErrorIs(t, err, ErrMalformed, tid)
		case gone:
			require.ErrorIs(t, err, ErrProcessGone, tid)
		default:
			require.NoError(t, err, tid)
			assert.Equal(t, tt.want, got, tid)
		}
	}
}
