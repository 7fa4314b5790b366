// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// stepf makes the child execute a step, which must succeed.
func stepf(t *testing.T, child *childproc.Child, format string, args ...any) {
	t.Helper()
	require.Equal(t, "ok", child.Ask(format, args...))
}

// numberf makes the child execute a step, and returns the number that the child answers.
func numberf(t *testing.T, child *childproc.Child, format string, args ...any) uint64 {
	t.Helper()
	answer := child.Ask(format, args...)
	n, err := strconv.ParseUint(answer, 10, 64)
	require.NoError(t, err)
	return n
}

// publishing starts a child that publishes the context of a service in a memfd.
func publishing(t *testing.T, service string) *childproc.Child {
	t.Helper()
	childproc.NeedReading(t)
	child := childproc.Start(t, "publisher", nil)
	t.Cleanup(child.Done)
	publishIn(t, child, "memfd", service)
	return child
}

// publishIn makes the child publish the context of a service in this kind of memory: see
// testWriter.mapMemory.
func publishIn(t *testing.T, child *childproc.Child, memory, service string) {
	t.Helper()
	numberf(t, child, "map %s", memory)
	stepf(t, child, "payload inside %x", marshal(t, message(service)))
	numberf(t, child, "publish")
}

// reading starts a child that publishes the context of a service, and reads the context.
func reading(t *testing.T, service string) (*childproc.Child, *Process, *ProcessContext) {
	t.Helper()
	child := publishing(t, service)
	p := open(t, child.PID())
	pc, err := p.ProcessContext(t.Context())
	require.NoError(t, err)
	require.Equal(t, service, serviceName(pc))
	return child, p, pc
}

// fails checks that reading the process context fails with an error that wraps want, and returns
// the error.
func fails(t *testing.T, p *Process, want error) error {
	t.Helper()
	pc, err := p.ProcessContext(t.Context())
	assertKind(t, want, err, p.PID())
	assert.Nil(t, pc)
	return err
}

func open(t *testing.T, pid int) *Process {
	t.Helper()
	p, err := Open(pid)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

// TestReadOtherPublishers checks all fields of the context of a publisher that stores the time last, and of one that
// stores the signature last and uses another clock. Scripts in testdata/publishers.txt use other kinds of memory.
func TestReadOtherPublishers(t *testing.T) {
	childproc.NeedReading(t)
	for _, order := range []string{"seed", "publish"} {
		t.Run(order, func(t *testing.T) {
			child := childproc.Start(t, "publisher", nil)
			msg := message("checkout")
			address := numberf(t, child, "map memfd")
			stepf(t, child, "payload outside %x", marshal(t, msg))
			before, err := boottime.Now()
			require.NoError(t, err)
			publishedAt := numberf(t, child, "%s", order)
			after, err := boottime.Now()
			require.NoError(t, err)

			p := open(t, child.PID())
			pc, err := p.ProcessContext(t.Context())
			require.NoError(t, err)
			assert.True(t, proto.Equal(msg, messageOf(pc)), "%v", messageOf(pc))
			assert.Equal(t, address, pc.MappingAddress)
			assert.Equal(t, uint32(2), pc.Version)
			assert.Len(t, pc.Payload, len(marshal(t, msg)))
			assert.Equal(t, publishedAt, pc.PublishedAtNS)
			assert.Contains(t, []string{"/memfd:OTEL_CTX (deleted)", "[anon_shmem:OTEL_CTX]"}, pc.MappingName)

			// The age must be right for either clock.
			age, err := pc.Age()
			require.NoError(t, err)
			assert.GreaterOrEqual(t, age, time.Duration(0))
			now, err := boottime.Now()
			require.NoError(t, err)
			assert.Less(t, age, time.Duration(now-before)+time.Minute)
			if order == "publish" {
				assert.True(t, before <= publishedAt && publishedAt <= after)
			}
			assert.False(t, changed(t, p, publishedAt))
			child.Done()
		})
	}
}

// kindNames holds the names of errors in testdata/publishers.txt.
var kindNames = map[error]string{
	ErrNoContext: "none", ErrNotPermitted: "not permitted", ErrProcessGone: "gone", ErrInvalid: "invalid", ErrBusy: "busy",
}

// outcome returns good if err is nil. Otherwise it returns the name of the documented error that
// err wraps.
func outcome(t *testing.T, err error, pid int, good string) string {
	t.Helper()
	if err == nil {
		return good
	}
	assertDocumented(t, err, pid)
	for kind, name := range kindNames {
		if errors.Is(err, kind) {
			return name
		}
	}
	return err.Error()
}

// TestPublisherScripts runs the scripts in testdata/publishers.txt. Each paragraph is a script:
// steps of the publisher, and questions with the expected answers. "read" reads the context through
// the Process that was opened at the start of the script, and "reopen" through a new one. "read all"
// does both. "changed" asks whether the context has changed since the last read.
func TestPublisherScripts(t *testing.T) {
	childproc.NeedReading(t)
	text, err := os.ReadFile("testdata/publishers.txt")
	require.NoError(t, err)
	for script := range strings.SplitSeq(string(text), "\n\n") {
		title, steps, _ := strings.Cut(strings.TrimSpace(script), "\n")
		t.Run(strings.Trim(title, "# ."), func(t *testing.T) {
			child := childproc.Start(t, "publisher", nil)
			t.Cleanup(child.Kill)
			p := open(t, child.PID())
			var publishedAt uint64
			for step := range strings.Lines(steps) {
				play(t, child, p, &publishedAt, strings.TrimSpace(step))
			}
		})
	}
}

func play(t *testing.T, child *childproc.Child, p *Process, publishedAt *uint64, step string) {
	t.Helper()
	read := func(p *Process) string {
		pc, err := p.ProcessContext(t.Context())
		if err != nil {
			return outcome(t, err, p.PID(), "")
		}
		*publishedAt = pc.PublishedAtNS
		return serviceName(pc)
	}
	order, want, _ := strings.Cut(step, ": ")
	var got []string
	switch order {
	case "read":
		got = []string{read(p)}
	case "reopen":
		got = []string{read(open(t, p.PID()))}
	case "read all":
		got = []string{read(p), read(open(t, p.PID()))}
	case "changed":
		changed, err := p.Changed(*publishedAt)
		got = []string{outcome(t, err, p.PID(), strconv.FormatBool(changed))}
	case "open":
		_, err := Open(p.PID())
		got = []string{outcome(t, err, p.PID(), "open")}
	case "kill":
		child.Kill()
	case "zombie":
		child.Zombie()
	case "stop":
		require.NoError(t, syscall.Kill(p.PID(), syscall.SIGSTOP))
	case "continue":
		require.NoError(t, syscall.Kill(p.PID(), syscall.SIGCONT))
	case "exec":
		child.Send("exec")
		child.Expect("idle")
	default:
		words := strings.Fields(order)
		if words[0] == "payload" {
			words[2] = hex.EncodeToString(marshal(t, message(words[2])))
		}
		child.Ask("%s", strings.Join(words, " "))
	}
	for _, answer := range got {
		assert.Contains(t, strings.Split(want, ", "), answer, step)
	}
}

func TestReadWildPayload(t *testing.T) {
	child, p, _ := reading(t, "x")
	for _, at := range []uint64{0, 1, 4096, 1 << 47, 1<<63 - 65536, 1 << 63, 0xffffffff81000000, 0xffffffffff600000, math.MaxUint64} {
		for _, size := range []uint32{0, 1, 65536, 65537, math.MaxUint32} {
			stepf(t, child, "update-start")
			stepf(t, child, "point %d %d", at, size)
			numberf(t, child, "update-end")
			fails(t, p, ErrInvalid)
		}
	}
	stepf(t, child, "update-start")
	stepf(t, child, "payload outside %x", marshal(t, message("sane again")))
	numberf(t, child, "update-end")
	pc, err := p.ProcessContext(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "sane again", serviceName(pc))
}

func TestReadKernelThread(t *testing.T) {
	if comm, err := os.ReadFile("/proc/2/comm"); err != nil || string(comm) != "kthreadd\n" {
		t.Skip("no kernel threads are visible: not in the first PID namespace")
	}
	_, err := open(t, 2).ProcessContext(t.Context())
	require.Error(t, err)
	assertDocumented(t, err, 2)
	if os.Geteuid() == 0 {
		require.NotErrorIs(t, err, ErrNotPermitted)
	}
}

func TestOpenNoSuchProcess(t *testing.T) {
	for _, pid := range []int{0, -1, math.MinInt, math.MaxInt, math.MaxInt32} {
		p, err := Open(pid)
		assertKind(t, ErrProcessGone, err, pid)
		assert.Nil(t, p)
	}
}

// TestReadNotPermitted checks that reading fails with ErrNotPermitted if the kernel allows access
// neither to the mappings nor to the memory.
func TestReadNotPermitted(t *testing.T) {
	child, p, pc := reading(t, "x")
	if os.Geteuid() == 0 {
		other := childproc.Start(t, "nobody", nil)
		other.Send("%d", child.PID())
		prefix := fmt.Sprintf("true pid %d: not permitted to read the process: ", child.PID())
		for _, way := range []string{"process_vm_readv", "process_vm_readv", "open", "open"} {
			got := other.Receive()
			assert.True(t, strings.HasPrefix(got, prefix+way), "%q", got)
		}
		other.Done()
		return
	}
	stepf(t, child, "undumpable")
	_, err := p.Changed(pc.PublishedAtNS)
	assertKind(t, ErrNotPermitted, err, child.PID())
	require.ErrorContains(t, fails(t, p, ErrNotPermitted), "process_vm_readv")
	require.ErrorContains(t, fails(t, open(t, child.PID()), ErrNotPermitted), "open")
}

func TestReadReusedPID(t *testing.T) {
	if !childproc.Capable(t, childproc.CapSysAdmin) {
		t.Skip("needs CAP_SYS_ADMIN, for a PID namespace in which ids can be chosen")
	}
	child := childproc.Start(t, "reused-pid", func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	})
	first := child.Receive()
	if strings.HasPrefix(first, "no ") {
		t.Skip(first + ": needs a kernel with CONFIG_CHECKPOINT_RESTORE, and processes whose addresses repeat")
	}
	// Changed only reads the memory at the known address, where it finds another publication. So it
	// reports a change and no error.
	assert.Equal(t, "true false <nil>", first)
	second := child.Receive()
	assert.True(t, strings.HasPrefix(second, "true pid "), "read the context of another process: %q", second)
	child.Expect("at the same address: true")
	child.Done()
}

// published returns the services of the children that Publishers finds, by pid. It fails the test
// if Publishers yields an error for one of the children.
func published(t *testing.T, ctx context.Context, children ...*childproc.Child) map[int]string {
	t.Helper()
	found := make(map[int]string)
	for p, err := range Publishers(ctx) {
		for _, c := range children {
			if err != nil {
				// Errors about other processes of this host do not matter.
				assert.False(t, strings.HasPrefix(err.Error(), fmt.Sprintf("pid %d: ", c.PID())), "%v", err)
				continue
			}
			if p.PID() == c.PID() {
				assert.NotContains(t, found, p.PID())
				pc, err := p.ProcessContext(t.Context())
				if assert.NoError(t, err) {
					found[p.PID()] = serviceName(pc)
				}
			}
		}
		if p != nil {
			assert.NoError(t, p.Close())
		}
	}
	return found
}

// TestPublishers checks that Publishers yields processes that publish a context, yields an error
// for an invalid context, and skips processes that publish nothing.
func TestPublishers(t *testing.T) {
	ctx := t.Context()
	one, busy, invalid := publishing(t, "one"), publishing(t, "two"), publishing(t, "three")
	want := map[int]string{one.PID(): "one", busy.PID(): "two", invalid.PID(): "three"}
	silent := childproc.Start(t, "idle", nil)
	silent.Expect("idle")
	assert.Equal(t, want, published(t, ctx, one, busy, invalid, silent))

	stepf(t, busy, "update-start")
	publishIn(t, invalid, "shared", "second")
	seen := false
	var reported error
	for p, err := range Publishers(ctx) {
		if err != nil {
			assert.Nil(t, p)
			if strings.HasPrefix(err.Error(), fmt.Sprintf("pid %d: ", invalid.PID())) {
				reported = err
			}
			continue
		}
		seen = seen || p.PID() == busy.PID()
		assert.NotEqual(t, invalid.PID(), p.PID())
		require.NoError(t, p.Close())
	}
	assert.True(t, seen, "a process with a context being updated counts as a publisher")
	assertKind(t, ErrInvalid, reported, invalid.PID())
	numberf(t, busy, "update-end")

	for p, err := range Publishers(ctx) {
		if err == nil {
			require.NoError(t, p.Close())
			break
		}
	}
	one.Kill()
	invalid.Kill()
	assert.Equal(t, map[int]string{busy.PID(): "two"}, published(t, ctx, one, busy, invalid, silent))
}

// countdown is a context that is canceled after Err has been called left times.
type countdown struct{ left int }

func (*countdown) Deadline() (time.Time, bool) { return time.Time{}, false }
func (*countdown) Done() <-chan struct{}       { return nil }
func (*countdown) Value(any) any               { return nil }

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestPublisherExitsDuringSearch(t *testing.T) {
	first, second := publishing(t, "first"), publishing(t, "second")
	ended := false
	for p, err := range Publishers(context.Background()) {
		if err != nil {
			assert.NotContains(t, err.Error(), fmt.Sprintf("pid %d: ", second.PID()), "a process that exits meanwhile is not reported")
			continue
		}
		if p.PID() == first.PID() {
			// Publishers has already listed the second process, unless the host has very many
			// processes.
			second.Kill()
			ended = true
		} else if ended {
			assert.NotEqual(t, second.PID(), p.PID())
		}
		require.NoError(t, p.Close())
	}
	assert.True(t, ended)
}

func TestPublishersCancelled(t *testing.T) {
	child := publishing(t, "x")
	// Cancel later and later, until the search completes first.
	alike := testenv.Rounds(8, math.MaxInt)
	for asked := 0; asked < 100_000; asked += 1 + asked/alike {
		var cancelled, found int
		for p, err := range Publishers(&countdown{asked}) {
			assert.Zero(t, cancelled, "the sequence continued after its context was canceled")
			switch {
			case err == nil:
				if p.PID() == child.PID() {
					found++
				}
				require.NoError(t, p.Close())
			case errors.Is(err, context.Canceled):
				assert.Nil(t, p)
				if asked == 0 {
					require.EqualError(t, err, "list processes: context canceled")
				}
				cancelled++
			}
		}
		if cancelled == 0 {
			assert.Equal(t, 1, found)
			return
		}
		require.Equal(t, 1, cancelled)
	}
	t.Fatal("the search never completed")
}

func TestAge(t *testing.T) {
	now, err := boottime.Now()
	require.NoError(t, err)
	tests := []struct {
		name     string
		at       uint64
		from, to time.Duration
	}{
		{"since boot", 1, time.Duration(now - 1), math.MaxInt64},
		{"just now", now, 0, time.Hour},
		{"since the epoch", uint64(time.Now().Add(-time.Minute).UnixNano()), time.Minute, time.Hour},
	}
	for _, tt := range tests {
		age, err := (&ProcessContext{PublishedAtNS: tt.at}).Age()
		require.NoError(t, err, tt.name)
		assert.GreaterOrEqual(t, age, tt.from, tt.name)
		assert.LessOrEqual(t, age, tt.to, tt.name)
	}
	for _, at := range []uint64{uint64(time.Now().Add(time.Hour).UnixNano()), math.MaxInt64, math.MaxUint64} {
		_, err := (&ProcessContext{PublishedAtNS: at}).Age()
		require.ErrorContains(t, err, "lies ahead")
	}
}
