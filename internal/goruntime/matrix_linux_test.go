// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// probeReport is what testdata/probe prints.
type probeReport struct {
	Version     string
	Micros      int64
	ThreadsLeft int
	Threads     int
	Offsets     map[string]int64
	Refused     map[string]string
	Wrong       []string
}

// A mode is a way to build the probe.
type mode struct {
	name    string
	env     []string
	args    []string
	run     []string             // what runs it, if not the kernel
	needs   func() error         // why the mode is not available
	refused map[string]string    // facts that are not to be had in this mode, and a part of the reason
	tls     func(off int64) bool // what the offset of g must be like
}

// next is a newer Go than the oldest supported one, which go.mod names.
const next = "go1.27.1"

// TestMatrix builds testdata/probe in every mode that this machine has the tools for, and runs it in several
// environments. The probe compares everything with the truth itself.
func TestMatrix(t *testing.T) {
	var (
		cgo     = []string{"CGO_ENABLED=1"}
		noCgo   = []string{"CGO_ENABLED=0"}
		noTLS   = map[string]string{TLSG.String(): "no cgo"}
		nearest = func(off int64) bool { return off == -8 }
		// C's thread-local variables are in between.
		beyond = func(off int64) bool { return off < -256 }
		above  = func(off int64) bool { return off >= 16 }
	)
	modes := []mode{
		{name: "static", env: noCgo, tls: nearest},
		{name: "pie", env: noCgo, args: []string{"-buildmode=pie"}, tls: nearest},
		{name: "stripped", env: noCgo, args: []string{"-trimpath", "-ldflags=-s -w"}, tls: nearest},
		{name: "unoptimized", env: noCgo, args: []string{"-gcflags=all=-N -l"}, tls: nearest},
		{name: "checkptr", env: noCgo, args: []string{"-gcflags=all=-d=checkptr"}, tls: nearest},
		{name: "cgo", env: cgo, needs: program("gcc"), tls: beyond},
		{name: "cgo-pie", env: cgo, args: []string{"-buildmode=pie"}, needs: program("gcc"), tls: beyond},
		{name: "cgo-static", env: cgo, args: []string{"-ldflags=-linkmode=external -extldflags=-static"}, needs: program("gcc"), tls: beyond},
		{
			name: "cgo-internal", env: append(cgo, "CGO_CFLAGS=-O2 -DNO_THREAD_LOCALS"), args: []string{"-ldflags=-linkmode=internal"},
			needs: program("gcc"), tls: nearest,
		},
		{name: "race", env: cgo, args: []string{"-race"}, needs: program("gcc"), tls: beyond},
		{name: next, env: append(noCgo, "GOTOOLCHAIN="+next), needs: toolchain, tls: nearest},
		{
			name: next + "-pie", env: append(noCgo, "GOTOOLCHAIN="+next), args: []string{"-buildmode=pie", "-trimpath", "-ldflags=-s -w"},
			needs: toolchain, tls: nearest,
		},
		{name: next + "-cgo", env: append(cgo, "GOTOOLCHAIN="+next), needs: both(program("gcc"), toolchain), tls: beyond},
		{name: next + "-race", env: append(cgo, "GOTOOLCHAIN="+next), args: []string{"-race"}, needs: both(program("gcc"), toolchain), tls: beyond},
	}
	if runtime.GOARCH == "arm64" {
		for i := range modes {
			modes[i].tls = above
			if strings.Contains(strings.Join(modes[i].env, " "), noCgo[0]) {
				modes[i].refused = noTLS
			}
		}
	} else {
		const qemu, gcc, root = "qemu-aarch64", "aarch64-linux-gnu-gcc", "/usr/aarch64-linux-gnu"
		arm := func(env ...string) []string { return append(env, "GOARCH=arm64", "CC="+gcc) }
		modes = append(modes,
			mode{name: "arm64", env: arm(noCgo...), run: []string{qemu}, needs: program(qemu), refused: noTLS},
			mode{
				name: "arm64-pie", env: arm(noCgo...), args: []string{"-buildmode=pie", "-trimpath", "-ldflags=-s -w"},
				run: []string{qemu, "-L", root}, needs: both(program(qemu), program(gcc)),
				// The dynamic linker sets up thread-local storage, which Go without cgo ignores.
				refused: map[string]string{TLSG.String(): errNotFound.Error()},
			},
			mode{
				name: "arm64-cgo", env: arm(cgo...), run: []string{qemu, "-L", root},
				needs: both(program(qemu), program(gcc)), tls: above,
			},
			mode{
				name: "arm64-cgo-pie", env: arm(cgo...), args: []string{"-buildmode=pie"}, run: []string{qemu, "-L", root},
				needs: both(program(qemu), program(gcc)), tls: above,
			},
			mode{
				name: "arm64-" + next, env: append(arm(noCgo...), "GOTOOLCHAIN="+next), run: []string{qemu},
				needs: both(program(qemu), toolchain), refused: noTLS,
			},
		)
	}
	if err := program("go")(); err != nil {
		t.Skipf("no go tool: %v", err)
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			if testing.Short() && m.name != "static" {
				t.Skip("not with -short")
			}
			if m.needs != nil {
				if err := m.needs(); err != nil {
					t.Skip(err)
				}
			}
			m.test(t)
		})
	}
}

func (m *mode) test(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "probe")
	args := append([]string{"build", "-o", exe}, m.args...)
	build := exec.Command("go", append(args, "./testdata/probe")...)
	build.Env = append(os.Environ(), m.env...)
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	envs := []string{"", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1"}
	if m.run == nil { // emulation is slow
		envs = append(envs, "GOMAXPROCS=8", "GOGC=1", "GODEBUG=clobberfree=1", "GOTRACEBACK=system")
	}
	best := int64(1 << 62)
	for _, env := range envs {
		rep := m.probe(t, exe, env)
		best = min(best, rep.Micros)
		for _, f := range Facts() {
			name := f.String()
			if want, ok := m.refused[name]; ok {
				assert.Contains(t, rep.Refused[name], want, env)
			} else {
				assert.Contains(t, rep.Offsets, name, "%s: %s", env, rep.Refused[name])
			}
		}
		if offset, ok := rep.Offsets[TLSG.String()]; ok {
			assert.True(t, m.tls(offset), "%s: tls.g %d", env, offset)
		}
		// The template thread, and those that the scheduler starts for any goroutine.
		assert.LessOrEqual(t, rep.ThreadsLeft, 4, env)
		assert.Greater(t, rep.Threads, 7, env)
		if env == "" {
			t.Logf("%s: %v", rep.Version, rep.Offsets)
		}
	}
	const most = 1000 // µs, while nothing else wants the processors; others get more tries
	for start := time.Now(); best > most && m.run == nil && time.Since(start) < time.Minute; {
		best = min(best, m.probe(t, exe, "").Micros)
	}
	t.Logf("calibrated in %d µs at best", best)
	if m.run == nil {
		assert.LessOrEqual(t, best, int64(most))
	}

	rep := m.probe(t, exe, "", "nofiles")
	assert.Len(t, rep.Offsets, 1)
	assert.Contains(t, rep.Offsets, LabelList.String())
	assert.Contains(t, rep.Refused[GGoid.String()], "pipe2: too many open files")
}

// probe runs the probe, which must find nothing wrong.
func (m *mode) probe(t *testing.T, exe, env string, args ...string) probeReport {
	t.Helper()
	argv := append(append(append([]string{}, m.run...), exe), args...)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env, "GORACE=atexit_sleep_ms=0")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, syscall.ENOEXEC) {
		t.Skipf("this test is emulated itself: %v", err)
	}
	var rep probeReport
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &rep), "%s: %v: %s", env, err, &stderr)
	require.NoError(t, err, "%s: %v: %s", env, rep.Wrong, &stderr)
	require.Empty(t, rep.Wrong, env)
	return rep
}

// program returns a check for a program in the path, a compiler or an emulator.
func program(name string) func() error {
	return func() error {
		_, err := exec.LookPath(name)
		return err
	}
}

// toolchain checks for the next Go, which the go command fetches if it may.
func toolchain() error {
	cmd := exec.Command("go", "version")
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+next)
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.New("no " + next + ": " + string(out))
	}
	return nil
}

func both(a, b func() error) func() error {
	return func() error { return errors.Join(a(), b()) }
}
