// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/resources"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// The child processes in this file publish contexts as otelctx never does: according to other
// versions of the OTEP, like publishers in other languages, or with invalid data. Some get stuck or
// exit.

func TestMain(m *testing.M) {
	roles := map[string]func(*childproc.Parent){
		"publisher":   publisher,
		"merged-ring": mergedRing,
		"idle":        idle,
		"nobody":      nobody,
		"reused-pid":  reusedPID,
		"tracer":      tracer,
	}
	maps.Copy(roles, threadRoles)
	childproc.Main(m, roles)
}

// idle publishes nothing.
func idle(p *childproc.Parent) {
	p.Send("idle")
	p.Receive()
}

// tracer traces the thread that the test names, without stopping it.
func tracer(p *childproc.Parent) {
	line, _ := p.Receive()
	tid, err := strconv.Atoi(line)
	p.Must(err)
	runtime.LockOSThread()
	p.Must(unix.PtraceSeize(tid))
	p.Send("traces")
	p.Receive()
}

// publisher executes the steps that the test sends, one on each line. It answers each with "ok", a
// number or the reason for a failure.
func publisher(p *childproc.Parent) {
	w := new(testWriter)
	for line, ok := p.Receive(); ok; line, ok = p.Receive() {
		words := strings.Fields(line)
		answer, err := w.do(words[0], words[1:])
		p.Must(err)
		p.Send("%s", answer)
	}
}

// testWriter publishes a process context step by step.
type testWriter struct {
	// memory is the mapping that begins with the header, and address is its address.
	memory  []byte
	address uint64
	region  *vma.Region
	memfd   *os.File
	// payload is the mapping of a payload outside of memory. payloadAddress and payloadSize are
	// what publish and update-end store in the header.
	payload        *vma.Region
	payloadAddress uint64
	payloadSize    int
}

func (w *testWriter) header() *wire.ProcessContextHeader {
	return wire.ProcessContextHeaderIn(w.memory)
}

func (w *testWriter) do(step string, args []string) (string, error) {
	switch step {
	case "map": // how
		return w.mapMemory(args[0])
	case "payload": // inside|outside hex
		payload, err := hex.DecodeString(args[1])
		if err != nil {
			return "", err
		}
		return "ok", w.writePayload(args[0] == "inside", payload)
	case "point": // address size
		_, err := fmt.Sscan(strings.Join(args, " "), &w.payloadAddress, &w.payloadSize)
		return "ok", err
	case "seed":
		return w.publish(uint64(time.Now().UnixNano()), true)
	case "publish":
		now, err := boottime.Now()
		if err != nil {
			return "", err
		}
		return w.publish(now, false)
	case "update-start":
		atomic.StoreUint64(&w.header().PublishedAtNS, 0)
		return "ok", nil
	case "update-end":
		h := w.header()
		h.PayloadSize, h.Payload = uint32(w.payloadSize), w.payloadAddress
		now, err := boottime.Now()
		atomic.StoreUint64(&h.PublishedAtNS, now)
		return strconv.FormatUint(now, 10), err
	case "truncate":
		return "ok", w.memfd.Truncate(0)
	case "close":
		return "ok", w.region.Close()
	case "end-first-thread":
		return "ok", childproc.EndFirstThread()
	case "undumpable":
		return "ok", childproc.ForbidReaders()
	case "exec":
		idle, err := childproc.Command("idle")
		if err != nil {
			return "", err
		}
		return "", syscall.Exec(idle.Path, idle.Args, idle.Environ())
	default:
		return "", fmt.Errorf("no step %q", step)
	}
}

const testMemorySize = 128 << 10

// mapMemory maps memory for a process context and returns its address. The mapping has its final
// name only after announce.
func (w *testWriter) mapMemory(how string) (string, error) {
	var err error
	w.region, w.memfd = nil, nil // an earlier mapping is not unmapped
	switch how {
	case "memfd": // private; the descriptor is closed
		w.region, err = vma.New(wire.ProcessContextName, testMemorySize)
	case "anonymous":
		// Without free descriptors, vma.New falls back to anonymous memory.
		err = resources.WithoutDescriptors(func() error {
			w.region, err = vma.New(wire.ProcessContextName, testMemorySize)
			return err
		})
	case "shared": // MAP_SHARED, which publishers must not use; the descriptor stays open
		var fd int
		if fd, err = unix.MemfdCreate(wire.ProcessContextName, 0); err != nil {
			return "", err
		}
		w.memfd = os.NewFile(uintptr(fd), wire.ProcessContextName)
		if err = w.memfd.Truncate(testMemorySize); err != nil {
			return "", err
		}
		w.memory, err = syscall.Mmap(int(w.memfd.Fd()), 0, testMemorySize,
			syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		if err == nil {
			w.address = uint64(reflect.ValueOf(w.memory).Pointer())
		}
	default:
		err = fmt.Errorf("no mapping %q", how)
	}
	if err != nil {
		return "", err
	}
	if w.region != nil {
		w.memory, w.address = w.region.Bytes(), w.region.Address()
	}
	return strconv.FormatUint(w.address, 10), nil
}

// writePayload stores the payload right after the header if inside is true, and otherwise in a mapping
// of its own.
func (w *testWriter) writePayload(inside bool, payload []byte) error {
	w.payloadSize = len(payload)
	if inside {
		const at = wire.ProcessContextHeaderSize
		copy(w.memory[at:], payload)
		w.payloadAddress = w.address + at
		return nil
	}
	elsewhere, err := vma.New("payload", len(payload))
	if err != nil {
		return err
	}
	copy(elsewhere.Bytes(), payload)
	w.payload, w.payloadAddress = elsewhere, elsewhere.Address()
	return nil
}

// publish writes the header and announces it. It stores the time last, as the merged OTEP requires,
// or, if seed is true, the signature last, as the first version of the OTEP did.
func (w *testWriter) publish(now uint64, seed bool) (string, error) {
	h := w.header()
	sign := func() { copy(h.Signature[:], wire.ProcessContextSignature) }
	if !seed {
		sign()
	}
	h.Version = wire.ProcessContextVersion
	h.PayloadSize, h.Payload = uint32(w.payloadSize), w.payloadAddress
	atomic.StoreUint64(&h.PublishedAtNS, now)
	if seed {
		sign()
	}
	return w.announce(now)
}

// announce names the mapping. It returns at as text, or "unnamed" if the kernel cannot name the
// memory.
func (w *testWriter) announce(at uint64) (string, error) {
	if w.region != nil {
		if err := w.region.Announce(); err != nil {
			return "unnamed", nil //nolint:nilerr // the test decides whether that is a failure
		}
	}
	return strconv.FormatUint(at, 10), nil
}

// nobody opens the process that the test names and finds its context, drops root's privileges, and
// then tries to read the context again: through the same Process, through one that has found
// nothing yet, and through Publishers. It reports the result of each attempt.
func nobody(p *childproc.Parent) {
	line, _ := p.Receive()
	pid, err := strconv.Atoi(line)
	p.Must(err)
	ctx := context.Background()
	found, err := Open(pid)
	p.Must(err)
	pc, err := found.ProcessContext(ctx)
	p.Must(err)
	fresh, err := Open(pid)
	p.Must(err)

	p.BecomeNobody()

	answer := func(err error) { p.Send("%t %v", errors.Is(err, ErrNotPermitted), err) }
	_, err = found.Changed(pc.PublishedAtNS)
	answer(err)
	for _, process := range []*Process{found, fresh} {
		_, err = process.ProcessContext(ctx)
		answer(err)
	}
	for process, err := range Publishers(ctx) {
		if process != nil {
			p.Must(process.Close())
		}
		if process != nil && process.PID() == pid || err != nil && strings.HasPrefix(err.Error(), fmt.Sprintf("pid %d: ", pid)) {
			answer(err)
		}
	}
}

// reusedPID runs as the first process of a PID namespace, in which it can choose the ids of new
// processes. It reads the context of a publisher, kills the publisher, and starts another publisher
// with the same id. Then it reads through the old [Process] and through a new one, and reports the
// results.
func reusedPID(p *childproc.Parent) {
	p.Must(syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""))
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		p.Send("no /proc of its own: %v", err)
		return
	}
	const lastPID = "/proc/sys/kernel/ns_last_pid"
	if err := os.WriteFile(lastPID, []byte("100"), 0); err != nil {
		p.Send("no choice of process ids: %v", err)
		return
	}
	// Without address space randomization, both processes map their contexts at the same address.
	runtime.LockOSThread()            // children inherit the personality from the thread that starts them
	const addrNoRandomize = 0x0040000 // ADDR_NO_RANDOMIZE
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PERSONALITY, addrNoRandomize, 0, 0); errno != 0 {
		p.Must(errno)
	}
	first, firstAt := startPlain(p)
	pid := first.Process.Pid
	process, err := Open(pid)
	p.Must(err)
	pc, err := process.ProcessContext(context.Background())
	p.Must(err)
	p.Must(first.Process.Kill())
	_ = first.Wait()

	var (
		second   *exec.Cmd
		secondAt string
	)
	for range 300 {
		// Retry, because a thread of the Go runtime may have taken the id, or the context may be at
		// another address.
		p.Must(os.WriteFile(lastPID, []byte(strconv.Itoa(pid-1)), 0))
		second, secondAt = startPlain(p)
		if second.Process.Pid == pid && secondAt == firstAt {
			break
		}
		p.Must(second.Process.Kill())
		_ = second.Wait()
		second = nil
	}
	if second == nil {
		p.Send("no two processes with the same id and the same addresses")
		return
	}
	changed, err := process.Changed(pc.PublishedAtNS)
	p.Send("%t %t %v", changed, errors.Is(err, ErrProcessGone), err)
	_, err = process.ProcessContext(context.Background())
	p.Send("%t %v", errors.Is(err, ErrProcessGone), err)
	p.Must(process.Close())

	again, err := Open(pid)
	p.Must(err)
	other, err := again.ProcessContext(context.Background())
	p.Must(err)
	p.Send("at the same address: %t", other.MappingAddress == pc.MappingAddress)
	p.Must(again.Close())
	p.Must(second.Process.Kill())
	_ = second.Wait()
}

// startPlain starts a publisher from within a child process, which has no testing.T. at is the
// address of the publisher's context.
func startPlain(p *childproc.Parent) (cmd *exec.Cmd, at string) {
	cmd, err := childproc.Command("publisher")
	p.Must(err)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	p.Must(err)
	out, err := cmd.StdoutPipe()
	p.Must(err)
	p.Must(cmd.Start())
	const smallest = "0a00"
	_, err = io.WriteString(in, "map memfd\npayload inside "+smallest+"\npublish\n")
	p.Must(err)
	var payload, published string
	_, err = fmt.Fscan(out, &at, &payload, &published)
	p.Must(err)
	return cmd, at
}
