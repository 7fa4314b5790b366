// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// hostAgent is a reader that is written from the specification, with its own definitions of formats
// and names. It uses this module only to read memory and the list of mappings.
type hostAgent struct {
	t      *testing.T
	pid    int
	memory remotemem.Memory
	// storage is the address of the pointer to the process storage. tls is the offset of the
	// pointer to a thread's record from the thread pointer.
	storage uint64
	tls     int64
	// bases caches thread pointers by thread id.
	bases map[int]uint64
}

var libraryPath = regexp.MustCompile(`.*/elastic-jvmti-linux-([\w-]*)\.so`)

// attach finds the library in a process. It reads the mapped file, even though the process has
// deleted it.
func attach(t *testing.T, pid int) *hostAgent {
	t.Helper()
	process, err := procfs.NewFS("/proc").Process(pid)
	require.NoError(t, err)
	defer func() { require.NoError(t, process.Close()) }()
	a := &hostAgent{t: t, pid: pid, memory: remotemem.Of(pid), bases: map[int]uint64{}}
	var found []procfs.Mapping
	for m, err := range process.Maps(func([]byte) bool { return true }) {
		require.NoError(t, err)
		if m.Perms.Exec && libraryPath.MatchString(m.Name) {
			found = append(found, m)
		}
		require.False(t, m.Perms.Exec && m.Perms.Write, "%+v", m)
	}
	require.Len(t, found, 1)
	m := found[0]
	require.True(t, strings.HasSuffix(m.Name, " (deleted)"), m.Name)
	f, err := elf.Open(fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.Start, m.End))
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("opening mapped files takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE: %v", err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()

	bias, known := uint64(0), false
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && p.Off == m.Offset {
			bias, known = m.Start-p.Vaddr, true
		}
	}
	require.True(t, known)
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	for _, s := range symbols {
		if s.Name == "elastic_apm_profiling_correlation_process_storage_v1" {
			a.storage = bias + s.Value
		}
	}
	require.NotZero(t, a.storage)
	descriptor := uint64(0)
	for _, s := range f.Sections {
		if s.Type != elf.SHT_RELA {
			continue
		}
		b, err := s.Data()
		require.NoError(t, err)
		for ; len(b) >= 24; b = b[24:] {
			info := f.ByteOrder.Uint64(b[8:])
			if elf.R_X86_64(info&0xffffffff) == elf.R_X86_64_TLSDESC &&
				symbols[info>>32-1].Name == "elastic_apm_profiling_correlation_tls_v1" {
				descriptor = bias + f.ByteOrder.Uint64(b)
			}
		}
	}
	require.NotZero(t, descriptor)
	a.tls = int64(a.word(descriptor + 8))
	return a
}

func (a *hostAgent) read(at uint64, size int) []byte {
	a.t.Helper()
	b := make([]byte, size)
	_, err := a.memory.ReadAt(b, int64(at))
	require.NoError(a.t, err)
	return b
}

func (a *hostAgent) word(at uint64) uint64 {
	a.t.Helper()
	return binary.NativeEndian.Uint64(a.read(at, 8))
}

// interrupted stops a thread, calls f, and resumes the thread.
func (a *hostAgent) interrupted(tid int, f func()) {
	a.t.Helper()
	// All ptrace calls must come from the same thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(tid); errors.Is(err, unix.EPERM) {
		a.t.Skipf("no ptrace: %v", err)
	} else {
		require.NoError(a.t, err)
	}
	require.NoError(a.t, unix.PtraceInterrupt(tid))
	_, err := unix.Wait4(tid, nil, unix.WALL, nil)
	require.NoError(a.t, err)
	defer func() { require.NoError(a.t, unix.PtraceDetach(tid)) }()
	f()
}

// base returns the thread pointer of a thread. To read the registers, it stops the thread on the
// first call.
func (a *hostAgent) base(tid int) uint64 {
	a.t.Helper()
	if _, ok := a.bases[tid]; !ok {
		a.interrupted(tid, func() {
			var regs unix.PtraceRegs
			require.NoError(a.t, unix.PtraceGetRegs(tid, &regs))
			a.bases[tid] = regs.Fs_base
		})
	}
	return a.bases[tid]
}

// thread returns the span that a thread publishes, in the format of the service's answers.
func (a *hostAgent) thread(tid int) string {
	a.t.Helper()
	at := a.word(a.base(tid) + uint64(a.tls))
	if at == 0 {
		return "no record"
	}
	b := a.read(at, 37)
	switch {
	case binary.NativeEndian.Uint16(b) != 1:
		return fmt.Sprintf("layout-minor-version %d", binary.NativeEndian.Uint16(b))
	case b[2] != 1:
		return "not valid"
	case b[3] == 0:
		return "nothing"
	}
	return fmt.Sprintf("%s %s %s %d", hex.EncodeToString(b[5:21]), hex.EncodeToString(b[21:29]), hex.EncodeToString(b[29:37]), b[4])
}

// startService starts the service and returns the Go version that it reports.
func startService(t *testing.T, v programs.Variant, env ...string) (child *childproc.Child, version string) {
	t.Helper()
	exe := programs.Build(t, v, ".", "./testdata/service")
	child = childproc.Start(t, "", func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args = exe, []string{exe}
		cmd.Env = append(append(cmd.Env, "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR="+testenv.ShortDir(t)), env...)
	})
	version, ok := strings.CutPrefix(child.Receive(), "ready ")
	require.True(t, ok)
	return child, version
}

// startThread makes the service start a thread of the given kind, and returns the thread id.
func startThread(t *testing.T, child *childproc.Child, kind string) int {
	t.Helper()
	tid, err := strconv.Atoi(child.Ask("%s", kind))
	require.NoError(t, err)
	return tid
}

// TestHostAgentSeesSpans checks that the host agent sees the correct span of each thread, however
// the service was built, and nothing after Shutdown.
func TestHostAgentSeesSpans(t *testing.T) {
	t.Parallel()
	variants := []programs.Variant{programs.Static, programs.Cgo}
	if testenv.All() {
		variants = append(variants, programs.PIE, programs.CgoPIE, programs.CgoStatic)
		for _, v := range variants {
			variants = append(variants, v.With(programs.NextGo))
		}
	}
	for _, v := range variants {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			child, version := startService(t, v)
			if v.Toolchain != "" {
				require.Equal(t, v.Toolchain, version)
			}
			agent := attach(t, child.PID())
			const actors = 4
			var tids [actors]int
			var last [actors]string
			for n := range tids {
				tids[n], last[n] = startThread(t, child, "actor"), "no record"
				require.Equal(t, last[n], agent.thread(tids[n]))
			}
			for n := range testenv.Rounds(1_000, 10_000) {
				who := rand.IntN(actors)
				last[who] = child.Ask("change %d", who)
				require.Equal(t, last[who], agent.thread(tids[who]), "change %d", n)
				if n%50 == 0 {
					for other := range last {
						require.Equal(t, last[other], agent.thread(tids[other]), "other threads do not change")
					}
				}
			}
			require.NotZero(t, agent.word(agent.storage))
			require.Equal(t, "shut down", child.Ask("shutdown"))
			assert.Zero(t, agent.word(agent.storage), "the storage is withdrawn")
			for _, tid := range tids {
				assert.Contains(t, []string{"nothing", "no record"}, agent.thread(tid))
			}
			assert.Equal(t, attach(t, child.PID()).storage, agent.storage, "the library stays mapped")
			child.Done()
		})
	}
}

// TestHostAgentInterruptsThreads checks that at any instruction a thread publishes one whole span
// or none, or its record says that it is being changed.
func TestHostAgentInterruptsThreads(t *testing.T) {
	t.Parallel()
	child, _ := startService(t, programs.Static, "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED=auto")
	agent := attach(t, child.PID())
	tid := startThread(t, child, "spin")
	word := agent.base(tid) + uint64(agent.tls)
	require.Eventually(t, func() bool { return agent.word(word) != 0 }, testenv.Patience, time.Millisecond)
	at := agent.word(word)
	counts := map[string]int{}
	agent.interrupted(tid, func() {
		b := make([]byte, 37)
		// After the first end of a span, each further end completes a pass through all instructions
		// that publish and clear a span.
		for last, ends := "", 0; ends < testenv.Rounds(2, 5); {
			if _, err := agent.memory.ReadAt(b, int64(at)); err != nil {
				t.Fatal(err)
			}
			now := "a span"
			switch {
			case b[2] == 0:
				now = "not valid"
			case b[3] == 0:
				now = "nothing"
			case string(b[5:21]) == string(b[21:29])+string(b[21:29]) && string(b[29:37]) == string(b[21:29]):
			default:
				t.Fatalf("mixed: %x", b)
			}
			if now == "nothing" && last == "not valid" {
				ends++
			}
			last = now
			counts[now]++
			if err := unix.PtraceSingleStep(tid); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Wait4(tid, nil, unix.WALL, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Log(counts)
	assert.Len(t, counts, 3)
}
