// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
)

// mapper builds testdata/mapper/mapper.c, a program that maps code while it runs, and one library per function
// name. Every user can read the files.
func mapper(t *testing.T, functions ...string) (program string, libraries []string) {
	t.Helper()
	program = programs.Public(t, programs.C(t, "testdata/mapper/mapper.c", "-fno-omit-frame-pointer", "-ldl"), "mapper")
	for _, name := range functions {
		library := programs.C(t, "testdata/mapper/library.c", "-fno-omit-frame-pointer", "-shared", "-fPIC", "-Wl,--build-id", "-DNAME="+name)
		libraries = append(libraries, programs.Public(t, library, name+".so"))
	}
	return program, libraries
}

// called counts samples by caller, which is in_first or in_second, and by each function that the caller called
// directly or indirectly. A function without a name counts as "". Samples without either caller are left out.
func called(p *pprof.Profile) map[string]map[string]int64 {
	samples := map[string]map[string]int64{}
	for _, s := range p.Sample {
		within := map[string]bool{}
		for _, l := range s.Location {
			name := ""
			for _, line := range l.Line {
				name = line.Function.Name
			}
			if name == "in_first" || name == "in_second" {
				if samples[name] == nil {
					samples[name] = map[string]int64{}
				}
				for n := range within {
					samples[name][n] += s.Value[0]
				}
				break
			}
			within[name] = true
		}
	}
	return samples
}

// recordMapper records c with the command record, which writes the profile to file. It interrupts the command after
// c has used another 500 ms of CPU time, and returns the samples as [called] counts them.
func recordMapper(t *testing.T, c *childproc.Child, record *exec.Cmd, file string) (map[string]map[string]int64, result) {
	t.Helper()
	r := startCommand(t, record)
	exe, err := os.Readlink("/proc/" + pidOf(c) + "/exe")
	require.NoError(t, err)
	r.awaitSampleOf(t, exe)
	busyservice.AwaitUse(t, c, 500*time.Millisecond)
	c.Stop()
	got := r.interrupt(t)
	c.Continue()
	require.Zero(t, got.code, got.stderr)
	samples := called(readPprof(t, file))
	t.Log(samples, got.stderr)
	return samples, got
}

func TestRecordMapper(t *testing.T) {
	t.Parallel()
	needSampling(t)
	program, libraries := mapper(t, "first_work", "second_work")
	for name, c := range map[string]struct {
		args []string
		// names are the functions that in_first and in_second call.
		names [2]string
		said  string
	}{
		"libraries at the same address":     {[]string{"reload", libraries[0], libraries[1]}, [2]string{"first_work", "second_work"}, ""},
		"compiled and replaced":             {[]string{"compile", "1", libraries[1]}, [2]string{"Optimized:handler", "second_work"}, ""},
		"thousands of pages below the code": {[]string{"compile", strconv.Itoa(17_000), libraries[1]}, [2]string{"Optimized:handler", "second_work"}, "too many executable mappings"},
	} {
		t.Run(name, func(t *testing.T) {
			child := childproc.Run(t, exec.Command(program, c.args...))
			child.Expect("running")
			file := filepath.Join(t.TempDir(), "p.pb.gz")
			samples, got := recordMapper(t, child, exec.Command(executable(t), "record", pidOf(child), "--duration=0", "--freq=997", "-o", file), file)
			for i, function := range []string{"in_first", "in_second"} {
				own, other := c.names[i], c.names[1-i]
				assert.Zero(t, samples[function][other], "%s is named by mistake", other)
				assert.Greater(t, samples[function][own], 9*samples[function][""], "%s has no name", own)
			}
			assert.Contains(t, got.stderr, c.said)
			child.Done()
		})
	}
}

// TestRecordOnOverlayfs checks that an ordinary user gets the function names of a library on overlayfs, where a
// file and its mapping have different device and inode numbers.
func TestRecordOnOverlayfs(t *testing.T) {
	t.Parallel()
	needSampling(t)
	if os.Geteuid() != 0 {
		t.Skip("a file system to mount and another user take root: CAP_SYS_ADMIN, CAP_SETUID")
	}
	program, libraries := mapper(t, "first_work")
	base := programs.PublicDir(t)
	dir := func(name string) string {
		path := filepath.Join(base, name)
		require.NoError(t, os.Mkdir(path, 0o755))
		require.NoError(t, os.Chmod(path, 0o755)) // regardless of the umask
		return path
	}
	file := filepath.Join(dir("out"), "p.pb.gz")
	require.NoError(t, os.Chmod(filepath.Dir(file), 0o777))
	upper, merged := dir("upper"), dir("merged")
	// The upper layer must not be on overlayfs, so it gets its own file system.
	if err := unix.Mount("tmpfs", upper, "tmpfs", 0, ""); err != nil {
		t.Skipf("mounting takes CAP_SYS_ADMIN: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(upper, 0) })
	for _, sub := range []string{"upper", "work"} {
		dir(filepath.Join("upper", sub))
	}
	options := "lowerdir=" + filepath.Dir(libraries[0]) + ",upperdir=" + upper + "/upper,workdir=" + upper + "/work"
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Skipf("overlayfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, 0) })

	cmd := exec.Command(program, "run", filepath.Join(merged, filepath.Base(libraries[0])))
	childproc.AsNobody(cmd)
	child := childproc.Run(t, cmd)
	child.Expect("running")
	record := exec.Command(programs.Public(t, "/proc/self/exe", "otelctx"), "record", pidOf(child), "--duration=0", "--freq=997", "-o", file)
	childproc.AsNobody(record, unix.CAP_BPF, unix.CAP_PERFMON)
	samples, _ := recordMapper(t, child, record, file)
	assert.Greater(t, samples["in_first"]["first_work"], 9*samples["in_first"][""])
}
