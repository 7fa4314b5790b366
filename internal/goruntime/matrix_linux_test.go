// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// probeReport is what testdata/probe prints.
type probeReport struct {
	Version     string
	Calls       int
	ThreadsLeft int
	Threads     int
	Offsets     map[string]int64
	Refused     map[string]string
	Wrong       []string
}

// mostCalls limits the number of reads and writes in a calibration. For each build mode, only the
// calibration with the fewest calls is checked. The limit is enough for two rounds, in case the
// first one does not settle all searches.
const mostCalls = 120

// A mode is a way to build the probe.
type mode struct {
	programs.Variant
	// usual is true for modes that every test run includes, because they compile few additional
	// packages. "make test-all" runs all modes.
	usual   bool
	run     []string             // the command that runs the program, for example an emulator
	refused map[string]string    // facts that are refused in this mode, each with a part of the reason
	tls     func(off int64) bool // reports whether an offset of g is plausible
}

// variant describes how to build the probe without a C compiler. The result is not shared with
// other tests.
func variant(name string, flags ...string) programs.Variant {
	return programs.Variant{Name: name, Flags: flags}
}

// TestMatrix checks calibration in every build mode for which this machine has the tools, and in
// several environments. In each it runs testdata/probe, which compares the facts with public
// sources.
func TestMatrix(t *testing.T) {
	var (
		noTLS   = map[string]string{TLSG.String(): "no cgo"}
		nearest = func(off int64) bool { return off == -8 }
		// The thread-local variables of C are between g and the thread pointer.
		beyond   = func(off int64) bool { return off < -256 }
		above    = func(off int64) bool { return off >= 16 }
		race     = programs.Variant{Name: "race", Cgo: true, Flags: []string{"-race"}}
		internal = programs.Variant{
			Name: "cgo-internal", Cgo: true, Flags: []string{"-ldflags=-linkmode=internal"},
			Env: []string{"CGO_CFLAGS=-O2 -DNO_THREAD_LOCALS"},
		}
	)
	modes := []mode{
		{Variant: programs.Static, usual: true, tls: nearest},
		{Variant: programs.Stripped, usual: true, tls: nearest},
		{Variant: programs.PIE, tls: nearest},
		{Variant: variant("trimmed", "-trimpath", "-ldflags=-s -w"), tls: nearest},
		{Variant: variant("unoptimized", "-gcflags=all=-N -l"), tls: nearest},
		{Variant: variant("checkptr", "-gcflags=all=-d=checkptr"), tls: nearest},
		{Variant: programs.Cgo, usual: true, tls: beyond},
		{Variant: programs.CgoPIE, tls: beyond},
		{Variant: programs.CgoStatic, tls: beyond},
		{Variant: internal, tls: nearest},
		{Variant: race, tls: beyond},
		{Variant: programs.Static.With(programs.NextGo), tls: nearest},
		{Variant: variant("trimmed-pie", "-buildmode=pie", "-trimpath", "-ldflags=-s -w").With(programs.NextGo), tls: nearest},
		{Variant: programs.Cgo.With(programs.NextGo), tls: beyond},
		{Variant: race.With(programs.NextGo), tls: beyond},
	}
	if runtime.GOARCH == "arm64" {
		for i := range modes {
			modes[i].tls = above
			if !modes[i].Cgo {
				modes[i].refused = noTLS
			}
		}
	} else {
		const qemu = "qemu-aarch64"
		static, dynamic := []string{qemu}, []string{qemu, "-L", programs.Arm64Root}
		modes = append(modes,
			mode{Variant: programs.Static.For("arm64"), run: static, refused: noTLS},
			mode{
				Variant: variant("trimmed-pie", "-buildmode=pie", "-trimpath", "-ldflags=-s -w").For("arm64"), run: dynamic,
				// Without cgo, Go does not use the thread-local storage that the dynamic linker has
				// set up.
				refused: map[string]string{TLSG.String(): errNotFound.Error()},
			},
			mode{Variant: programs.Cgo.For("arm64"), run: dynamic, tls: above},
			mode{Variant: programs.CgoPIE.For("arm64"), run: dynamic, tls: above},
			mode{Variant: programs.Static.With(programs.NextGo).For("arm64"), run: static, refused: noTLS},
		)
	}
	for _, m := range modes {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			if !m.usual {
				testenv.NeedAll(t)
			}
			if m.run != nil {
				if _, err := exec.LookPath(m.run[0]); err != nil {
					t.Skip(err)
				}
			}
			m.test(t)
		})
	}
}

func (m *mode) test(t *testing.T) {
	exe := programs.Build(t, m.Variant, ".", "./testdata/probe")
	envs := []string{"", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1"}
	if m.run == nil { // emulation is slow
		envs = append(envs, "GOMAXPROCS=8", "GOGC=1", "GODEBUG=clobberfree=1", "GOTRACEBACK=system")
	}
	fewest := math.MaxInt
	for _, env := range envs {
		rep := m.probe(t, exe, env)
		fewest = min(fewest, rep.Calls)
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
		// Up to four threads may remain: the template thread, and threads that the scheduler starts
		// for any new goroutine.
		assert.LessOrEqual(t, rep.ThreadsLeft, 4, env)
		assert.Greater(t, rep.Threads, 7, env)
		t.Logf("%s %s: %v by %d reads and writes", rep.Version, env, rep.Offsets, rep.Calls)
	}
	// A service waits for its calibration, and these calls take nearly all of the time.
	assert.LessOrEqual(t, fewest, mostCalls)

	rep := m.probe(t, exe, "", "nofiles")
	assert.Len(t, rep.Offsets, 1)
	assert.Contains(t, rep.Offsets, LabelList.String())
	assert.Contains(t, rep.Refused[GGoid.String()], "pipe2: too many open files")
}

// probe runs the probe and returns its report. It fails the test if the probe finds anything wrong.
func (m *mode) probe(t *testing.T, exe, env string, args ...string) probeReport {
	t.Helper()
	argv := append(append(append([]string{}, m.run...), exe), args...)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env, "GORACE=atexit_sleep_ms=0")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, syscall.ENOEXEC) {
		t.Skipf("this test itself runs in an emulator: %v", err)
	}
	var rep probeReport
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &rep), "%s: %v: %s", env, err, &stderr)
	require.NoError(t, err, "%s: %v: %s", env, rep.Wrong, &stderr)
	require.Empty(t, rep.Wrong, env)
	return rep
}
