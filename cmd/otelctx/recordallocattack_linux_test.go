// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// roleAllocating is a service that allocates when asked, and changes how its own code is mapped.
const roleAllocating = "allocating"

// allocatingRole executes these commands, and answers each with a line:
//
//   - "run" allocates 64 MiB in a span.
//   - "exec PATH" executes another program.
//   - "map PATH" maps a file as executable, as dlopen does, and unmaps it again.
//   - "again" maps this program's own code a second time; "unequal" also changes the second mapping.
//   - "writable" makes the program's code writable.
//   - "anonymous" replaces the code by a copy in anonymous memory, and "copy PATH" by that of another file.
//   - "shared PATH" replaces the code by a shared mapping of this file.
func allocatingRole(parent *childproc.Parent) {
	parent.AdmitReaders()
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "allocating"))),
		spanctx.WithPublishing(),
	)
	tracer := tp.Tracer("")
	parent.Send("ready")
	for {
		line, ok := parent.Receive()
		if !ok {
			return
		}
		command, path, _ := strings.Cut(line, " ")
		code := ownCode(parent)
		switch command {
		case "run":
			_, span := tracer.Start(context.Background(), "run")
			for range 64 {
				allocatedByRole = make([]byte, 1<<20)
			}
			span.End()
		case "exec":
			parent.Must(syscall.Exec(path, []string{path}, os.Environ()))
		case "map":
			b := mapFile(parent, path, 0, 1<<16, unix.MAP_PRIVATE)
			parent.Must(unix.MunmapPtr(b, 1<<16))
		case "again":
			mapFile(parent, "/proc/self/exe", code.Offset, code.size(), unix.MAP_PRIVATE)
		case "unequal":
			b := mapFile(parent, "/proc/self/exe", code.Offset, code.size(), unix.MAP_PRIVATE)
			memory := unsafe.Slice((*byte)(b), code.size())
			parent.Must(unix.Mprotect(memory, unix.PROT_READ|unix.PROT_WRITE))
			for i := range memory {
				memory[i] ^= 1
			}
			parent.Must(unix.Mprotect(memory, unix.PROT_READ|unix.PROT_EXEC))
		case "writable":
			memory := unsafe.Slice((*byte)(code.address()), code.size())
			parent.Must(unix.Mprotect(memory, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC))
		case "anonymous":
			b, err := unix.MmapPtr(-1, 0, nil, code.size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			parent.Must(err)
			memory := unsafe.Slice((*byte)(b), code.size())
			copy(memory, unsafe.Slice((*byte)(code.address()), code.size()))
			parent.Must(unix.Mprotect(memory, unix.PROT_READ|unix.PROT_EXEC))
			code.replaceBy(parent, b)
		case "copy":
			code.replaceBy(parent, mapFile(parent, path, code.Offset, code.size(), unix.MAP_PRIVATE))
		case "shared":
			code.replaceBy(parent, mapFile(parent, path, code.Offset, code.size(), unix.MAP_SHARED))
		}
		parent.Send("done")
	}
}

// allocatedByRole keeps the compiler from allocating on the stack.
var allocatedByRole []byte

// roleCode is the mapping of the role's own code.
type roleCode struct{ procfs.Mapping }

func ownCode(parent *childproc.Parent) (code roleCode) {
	process, err := procfs.NewFS("/proc").Process(os.Getpid())
	parent.Must(err)
	defer func() { _ = process.Close() }()
	function := uint64(entry(allocatingRole))
	for m, err := range process.Maps(func([]byte) bool { return true }) {
		parent.Must(err)
		if m.Start <= function && function < m.End {
			code.Mapping = m
		}
	}
	return code
}

func (c roleCode) size() uintptr           { return uintptr(c.End - c.Start) }
func (c roleCode) address() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&c.Start)) }

// replaceBy moves another mapping with the same content to the place of the code. Threads that execute the code wait
// meanwhile, because the kernel locks the mappings.
func (c roleCode) replaceBy(parent *childproc.Parent, other unsafe.Pointer) {
	const fixed = unix.MREMAP_FIXED | unix.MREMAP_MAYMOVE
	_, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(other), c.size(), c.size(), fixed, uintptr(c.Start), 0)
	if errno != 0 {
		parent.Must(errno)
	}
}

func mapFile(parent *childproc.Parent, path string, offset uint64, size uintptr, flags int) unsafe.Pointer {
	f, err := os.Open(path)
	parent.Must(err)
	b, err := unix.MmapPtr(int(f.Fd()), int64(offset), nil, size, unix.PROT_READ|unix.PROT_EXEC, flags)
	parent.Must(errors.Join(err, f.Close()))
	return b
}

// entry returns the address of a function's code.
func entry(f func(*childproc.Parent)) uintptr { return **(**uintptr)(unsafe.Pointer(&f)) }

// startAllocating starts a service whose program file is its own, so that no other test changes it.
func startAllocating(t *testing.T) (c *childproc.Child, exe string) {
	t.Helper()
	c = childproc.Start(t, roleAllocating, func(cmd *exec.Cmd) {
		exe = filepath.Join(programs.Dir(t), "allocating")
		content, err := os.ReadFile(cmd.Path)
		require.NoError(t, err)
		programs.Write(t, exe, content)
		cmd.Path = exe
	})
	c.Expect("ready")
	return c, exe
}

// codeMapping returns a process's mapping of its program's code.
func codeMapping(t *testing.T, pid int) (code procfs.Mapping) {
	t.Helper()
	process, err := procfs.NewFS("/proc").Process(pid)
	require.NoError(t, err)
	defer func() { _ = process.Close() }()
	exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	require.NoError(t, err)
	for m, err := range process.Maps(func(name []byte) bool { return len(name) > 0 }) {
		require.NoError(t, err)
		mapped, err := os.Stat(fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.Start, m.End))
		if err == nil && m.Perms.Exec && os.SameFile(mapped, exe) {
			return m
		}
	}
	t.Fatal("the executable is not mapped")
	return code
}

// assertOwnCode waits until the memory of a process at the place of a mapping is what the file has there.
func assertOwnCode(t *testing.T, pid int, file *os.File, m procfs.Mapping) {
	t.Helper()
	want, got := make([]byte, m.End-m.Start), make([]byte, m.End-m.Start)
	n, err := file.ReadAt(want, int64(m.Offset))
	if !errors.Is(err, io.EOF) { // The last page may be incomplete.
		require.NoError(t, err)
	}
	assert.Eventually(t, func() bool {
		_, err := remotemem.Of(pid).ReadAt(got, int64(m.Start))
		require.NoError(t, err)
		return bytes.Equal(want[:n], got[:n])
	}, testenv.Patience, tick, "the code is not that of the file")
}

// attacked is a service and a recorder of its allocations, which waits before one of its system calls.
type attacked struct {
	*childproc.Child
	*running

	exe    string
	file   *os.File           // the service's program
	waits  chan struct{}      // closed when the recorder waits
	goOn   context.CancelFunc // lets it go on
	ended  chan error         // gets a value when the recorder has ended
	mapped procfs.Mapping     // that of the service's code, at first
	other  *running           // another recorder, or nil
}

// attack starts a service, and then a recorder, which waits before the first system call that matches.
func attack(t *testing.T, match func(*attacked, childproc.Call) bool) *attacked {
	t.Helper()
	c, exe := startAllocating(t)
	return attackService(t, c, exe, match)
}

// attackService is like attack, for a service that runs already.
func attackService(t *testing.T, c *childproc.Child, exe string, match func(*attacked, childproc.Call) bool, args ...string) *attacked {
	t.Helper()
	a := &attacked{Child: c, exe: exe, waits: make(chan struct{}), ended: make(chan error, 1), mapped: codeMapping(t, c.PID())}
	a.file = openProgram(t, c.PID())
	var going context.Context
	going, a.goOn = context.WithCancel(t.Context())
	t.Cleanup(a.goOn)
	s := childproc.NewSupervisor(t)
	cmd := exec.Command(executable(t), append([]string{"record", "--alloc", "--duration=0", "--json", pidOf(c)}, args...)...)
	cmd.ExtraFiles = []*os.File{s.Socket}
	cmd.Env = []string{supervisedKey + "=allocations"}
	a.running = startCommand(t, cmd)
	var once sync.Once
	go func() {
		a.ended <- s.Run(func(call childproc.Call) {
			if match(a, call) {
				once.Do(func() { close(a.waits) })
				<-going.Done()
			}
		})
	}()
	return a
}

// await waits until the recorder waits.
func (a *attacked) await(t *testing.T) {
	t.Helper()
	select {
	case <-a.waits:
	case err := <-a.ended:
		require.NoError(t, err)
		t.Fatalf("the recorder has ended: %s", a.stderr)
	}
}

// openProgram opens the file of a process's program, whatever its name stands for later.
func openProgram(t *testing.T, pid int) *os.File {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// reads reports whether a call is about to read the service's memory.
func (a *attacked) reads(call childproc.Call) bool {
	return call.Number == unix.SYS_PROCESS_VM_READV && int(call.Args[0]) == a.PID()
}

// opensProbe reports whether a call is about to set a probe in the service.
func (a *attacked) opensProbe(call childproc.Call) bool {
	return call.Number == unix.SYS_PERF_EVENT_OPEN && int(call.Args[1]) == a.PID()
}

// enablesProbe reports whether a call is about to enable a perf event. In a recording of allocations, that is a probe.
func (*attacked) enablesProbe(call childproc.Call) bool {
	return call.Number == unix.SYS_IOCTL && call.Args[1] == unix.PERF_EVENT_IOC_ENABLE
}

// removesProbe reports whether a call is about to close a probe.
func (a *attacked) removesProbe(call childproc.Call) bool {
	fd := int(call.Args[0])
	return call.Number == unix.SYS_CLOSE && hasProgram(a.cmd.Process.Pid, fd)
}

// enough is a number of samples that a run has for sure: of 64 objects of 1 MiB, 55 are sampled on average.
const enough = 30

// TestRecordAllocDuringAttach attacks the recorder between its last check and the moment at which the kernel sets the
// probe. The service goes on to allocate, whatever happens then, and has its own code after the recording.
func TestRecordAllocDuringAttach(t *testing.T) {
	t.Parallel()
	needProbes(t)
	for name, test := range map[string]struct {
		attack func(*testing.T, *attacked)
		// samples are those that the recording must have at least. 0 if another program or no code is left to record.
		samples uint64
		// replaced reports whether the process executes a program, from which the recorder must remove the probe at once:
		// before it reads that program.
		replaced bool
	}{
		"nothing": {func(*testing.T, *attacked) {}, enough, false},
		"the program is executed again": {func(t *testing.T, a *attacked) {
			require.Equal(t, "ready", a.Ask("exec %s", a.exe))
		}, 0, true},
		"another program is executed": {func(t *testing.T, a *attacked) {
			require.Equal(t, "ready", a.Ask("exec %s", buildAllocator(t, programs.Stripped)))
		}, 0, true},
		"the file is replaced": {func(t *testing.T, a *attacked) {
			other := filepath.Join(filepath.Dir(a.exe), "other")
			programs.Write(t, other, bytes.Repeat([]byte{breakpoint}, 1<<20))
			require.NoError(t, os.Rename(other, a.exe))
		}, enough, false},
		"a library is loaded":         {func(t *testing.T, a *attacked) { a.order(t, "map", executable(t)) }, enough, false},
		"the program is loaded again": {func(t *testing.T, a *attacked) { a.order(t, "again") }, enough, false},
		"the code becomes writable":   {func(t *testing.T, a *attacked) { a.order(t, "writable") }, 0, false},
		"the code becomes anonymous":  {func(t *testing.T, a *attacked) { a.order(t, "anonymous") }, 0, false},
		"another recorder attaches": {func(t *testing.T, a *attacked) {
			a.other = start(t, "record", "--alloc", "--duration=0", pidOf(a.Child))
			awaitProbe(t, a.other)
		}, enough, false},
		"another recorder detaches": {func(t *testing.T, a *attacked) {
			other := start(t, "record", "--alloc", "--duration=0", pidOf(a.Child))
			awaitProbe(t, other)
			require.Equal(t, exitNoSamples, other.interrupt(t).code)
		}, enough, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			enabled := make(chan struct{})
			enable := sync.OnceFunc(func() { close(enabled) })
			next := make(chan childproc.Call, 1) // the call after the probe is enabled that removes it or reads the process
			probes := false
			a := attack(t, func(a *attacked, call childproc.Call) bool {
				switch {
				case a.enablesProbe(call):
					probes = true
					enable()
				case probes && (a.removesProbe(call) || a.reads(call)):
					probes = false
					select {
					case next <- call:
					default: // only the first one matters
					}
				}
				return a.opensProbe(call)
			})
			a.await(t)
			test.attack(t, a)
			a.goOn()
			if test.samples > 0 {
				awaitProbe(t, a.running)
			} else {
				<-enabled
			}
			if test.replaced {
				select {
				case call := <-next:
					assert.Equal(t, unix.SYS_CLOSE, call.Number)
				case <-time.After(testenv.Patience):
					require.Fail(t, "the recorder neither removes its probe nor reads the process")
				}
			}
			assert.NotEmpty(t, a.Ask("run"))
			got := a.interrupt(t)
			require.NoError(t, <-a.ended)
			if test.samples > 0 {
				var d report.AllocDocument
				require.NoError(t, json.Unmarshal([]byte(got.stdout), &d), got.stdout+got.stderr)
				assert.GreaterOrEqual(t, d.Samples, test.samples)
			}
			if a.other != nil {
				require.Zero(t, a.other.interrupt(t).code)
			}
			if name == "another program is executed" {
				a.file, a.mapped = openProgram(t, a.PID()), codeMapping(t, a.PID())
			}
			assertOwnCode(t, a.PID(), a.file, a.mapped)
			assert.NotEmpty(t, a.Ask("run"))
		})
	}
}

// TestRecordAllocDuringDlopen records a service that loads and unloads libraries all the time, also between the recorder's last
// check and the moment at which the kernel sets the probe.
func TestRecordAllocDuringDlopen(t *testing.T) {
	t.Parallel()
	testenv.NeedAll(t)
	needProbes(t)
	var libraries []string
	for i := range 4 {
		// They are large enough for the probed function to be in them, by its offset.
		libraries = append(libraries, programs.C(t, "testdata/mapper/library.c", "-shared", "-fPIC", `-DSPACE="1 << 22"`, fmt.Sprintf("-DNAME=library_%d", i)))
	}
	for _, v := range []programs.Variant{programs.Cgo, programs.CgoPIE} {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			exe := programs.Build(t, v, ".", "./testdata/loader")
			c := childproc.Run(t, exec.Command(exe, libraries...))
			require.Equal(t, "ready", c.Receive())
			for round := range 20 {
				var args []string
				probes := 1
				if round%2 == 1 {
					args, probes = []string{"--live"}, liveProbes
				}
				a := attackService(t, c, exe, (*attacked).opensProbe, args...)
				a.await(t)
				a.order(t, "load")
				a.goOn()
				awaitProbes(t, a.running, probes)
				a.order(t, "run")
				a.order(t, "load")
				got := a.interrupt(t)
				require.NoError(t, <-a.ended)
				var d report.AllocDocument
				require.NoError(t, json.Unmarshal([]byte(got.stdout), &d), got.stdout+got.stderr)
				assert.GreaterOrEqual(t, d.InSpans.Samples, uint64(enough), got.stderr)
				assertOwnCode(t, a.PID(), a.file, a.mapped)
			}
			assert.Equal(t, "done", c.Ask("run"))
		})
	}
}

// order makes the service execute a command.
func (a *attacked) order(t *testing.T, words ...string) {
	t.Helper()
	require.Equal(t, "done", a.Ask("%s", strings.Join(words, " ")))
}

// TestRecordAllocKilledAt kills the recorder in each phase of a recording. The service goes on to allocate, and has its own
// code.
func TestRecordAllocKilledAt(t *testing.T) {
	t.Parallel()
	needProbes(t)
	for name, phase := range map[string]func(*attacked, childproc.Call) bool{
		"before the checks":                (*attacked).reads,
		"between the checks and the probe": (*attacked).opensProbe,
		"before the probe has a program": func(_ *attacked, call childproc.Call) bool {
			return call.Number == unix.SYS_IOCTL && call.Args[1] == unix.PERF_EVENT_IOC_SET_BPF
		},
		"before the probe is enabled": (*attacked).enablesProbe,
		"while recording":             nil,
		"while the probe is removed":  (*attacked).removesProbe,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := attack(t, func(a *attacked, call childproc.Call) bool { return phase != nil && phase(a, call) })
			if name == "while recording" || name == "while the probe is removed" {
				awaitProbe(t, a.running)
				assert.Equal(t, byte(breakpoint), probed(t, a.PID())[0])
				a.order(t, "run")
			}
			if name == "while the probe is removed" {
				require.NoError(t, a.cmd.Process.Signal(os.Interrupt))
			}
			if phase != nil {
				a.await(t)
			}
			require.NoError(t, a.cmd.Process.Kill())
			require.Error(t, a.cmd.Wait(), a.stderr)
			a.goOn()
			require.NoError(t, <-a.ended)
			assertOwnCode(t, a.PID(), a.file, a.mapped)
			a.order(t, "run")
		})
	}
}

// TestRecordAllocRefusesMappings checks the reasons why a service is refused that has mapped its code in an unusual way.
// It goes on to allocate, with the code that it had.
func TestRecordAllocRefusesMappings(t *testing.T) {
	t.Parallel()
	needProbes(t)
	for command, want := range map[string]string{
		"writable":  "the process may change its code (rwxp at ",
		"shared":    "the process may change its code (r-xs at ",
		"anonymous": "the process has not mapped its executable there",
		"copy":      "the process has not mapped its executable there",
		"unequal":   "the code in memory is ",
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			c, exe := startAllocating(t)
			file, code := openProgram(t, c.PID()), codeMapping(t, c.PID())
			path := exe
			if command == "copy" {
				path = executable(t)
			}
			require.Equal(t, "done", c.Ask("%s %s", command, path))
			got := otelctx(t, "record", "--alloc", pidOf(c))
			assert.Contains(t, got.stderr, "no safe place for a probe: "+want)
			assert.Equal(t, exitOther, got.code)
			assertOwnCode(t, c.PID(), file, code)
			require.Equal(t, "done", c.Ask("run"))
		})
	}
}

// TestRecordAllocUnsupported checks that --alloc fails on a kernel whose BPF has no compare-and-swap, and gives this reason, and
// that CPU time is still recorded there.
func TestRecordAllocUnsupported(t *testing.T) {
	t.Parallel()
	needSampling(t)
	if err := probing(); !errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this kernel samples allocations, or this user may not")
	}
	c := startBusyService(t, nil, busyservice.Records)
	got := otelctx(t, "record", "--alloc", pidOf(c))
	assert.Contains(t, got.stderr, "sampling allocations needs Linux 5.12 or later")
	assert.Equal(t, exitOther, got.code)
	r := start(t, "record", "--duration=0", pidOf(c))
	r.takeSamples(t, c)
	got = r.interrupt(t)
	assert.Contains(t, got.stdout, "In spans")
	assert.Equal(t, exitOK, got.code, got.stderr)
}
