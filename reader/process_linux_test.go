// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
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

// stepf has a child do something that can be refused by nobody.
func stepf(t *testing.T, child *childproc.Child, format string, args ...any) {
	t.Helper()
	require.Equal(t, "ok", child.Ask(format, args...))
}

// numberf has a child do something that yields a number.
func numberf(t *testing.T, child *childproc.Child, format string, args ...any) uint64 {
	t.Helper()
	answer := child.Ask(format, args...)
	n, err := strconv.ParseUint(answer, 10, 64)
	require.NoError(t, err)
	return n
}

// publishing starts a child that publishes a service, the usual way.
func publishing(t *testing.T, service string) *childproc.Child {
	t.Helper()
	childproc.NeedReading(t)
	child := childproc.Start(t, "publisher", nil)
	t.Cleanup(child.Done)
	publishIn(t, child, "memfd", service)
	return child
}

// publishIn has a child publish a service in memory of a kind.
func publishIn(t *testing.T, child *childproc.Child, memory, service string) {
	t.Helper()
	numberf(t, child, "map %s", memory)
	stepf(t, child, "payload inside %x", marshal(t, message(service)))
	numberf(t, child, "publish")
}

// reading starts a child that publishes a service, and reads that.
func reading(t *testing.T, service string) (*childproc.Child, *Process, *ProcessContext) {
	t.Helper()
	child := publishing(t, service)
	p := open(t, child.PID())
	pc, err := p.ProcessContext(t.Context())
	require.NoError(t, err)
	require.Equal(t, service, serviceName(pc))
	return child, p, pc
}

// republish has a child put another service in the place of what it publishes.
func republish(t *testing.T, child *childproc.Child, service string) (publishedAt uint64) {
	t.Helper()
	stepf(t, child, "payload outside %x", marshal(t, message(service)))
	return numberf(t, child, "update-end")
}

// publishes fails the test unless a process publishes a service.
func publishes(t *testing.T, p *Process, service string) *ProcessContext {
	t.Helper()
	pc, err := p.ProcessContext(t.Context())
	require.NoError(t, err)
	assert.Equal(t, service, serviceName(pc))
	return pc
}

// fails has the test fail unless a process cannot be read, for a reason.
func fails(t *testing.T, p *Process, want error) error {
	t.Helper()
	pc, err := p.ProcessContext(t.Context())
	assertKind(t, want, err, p.PID())
	assert.Nil(t, pc)
	return err
}

// open opens a process for the length of the test.
func open(t *testing.T, pid int) *Process {
	t.Helper()
	p, err := Open(pid)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

func TestReadOtherPublishers(t *testing.T) {
	childproc.NeedReading(t)
	for _, mapping := range []string{"memfd", "anonymous", "shared"} {
		for _, payloadAt := range []string{"inside", "outside"} {
			for _, order := range []string{"seed", "publish"} {
				t.Run(fmt.Sprintf("mapping=%s/payload=%s/order=%s", mapping, payloadAt, order), func(t *testing.T) {
					child := childproc.Start(t, "publisher", nil)
					msg := message("checkout")
					address := numberf(t, child, "map %s", mapping)
					stepf(t, child, "payload %s %x", payloadAt, marshal(t, msg))

					before, err := boottime.Now()
					require.NoError(t, err)
					answer := child.Ask("%s", order)
					after, err := boottime.Now()
					require.NoError(t, err)
					if mapping == "anonymous" && answer == "unnamed" {
						require.False(t, canNameMemory(), "the kernel has CONFIG_ANON_VMA_NAME and yet did not name memory")
						fails(t, open(t, child.PID()), ErrNoContext)
						t.Skip("the kernel has no CONFIG_ANON_VMA_NAME: memory without a memfd cannot be named")
					}
					publishedAt, err := strconv.ParseUint(answer, 10, 64)
					require.NoError(t, err)

					p := open(t, child.PID())
					pc, err := p.ProcessContext(t.Context())
					require.NoError(t, err)
					assert.True(t, proto.Equal(msg, pc.Message), "%v", pc.Message)
					assert.Equal(t, address, pc.MappingAddress)
					assert.Equal(t, uint32(2), pc.Version)
					assert.Equal(t, len(marshal(t, msg)), pc.PayloadSize)
					assert.Equal(t, publishedAt, pc.PublishedAtNS)
					assert.Contains(t, []string{
						"/memfd:OTEL_CTX (deleted)", "[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]",
					}, pc.MappingName)

					// Both clocks give an age that this process agrees with.
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
	}
}

func TestReadUpdates(t *testing.T) {
	child, p, pc := reading(t, "first")
	for i := range 10 {
		service := strings.Repeat("next", i*100)
		stepf(t, child, "update-start")
		assert.True(t, changed(t, p, pc.PublishedAtNS))
		fails(t, p, ErrBusy)

		publishedAt := republish(t, child, service)
		assert.True(t, changed(t, p, pc.PublishedAtNS))
		pc = publishes(t, p, service)
		assert.Equal(t, publishedAt, pc.PublishedAtNS)
		assert.False(t, changed(t, p, publishedAt))
	}
}

func TestReadBeforePublication(t *testing.T) {
	childproc.NeedReading(t)
	child := childproc.Start(t, "publisher", nil)
	p := open(t, child.PID())
	fails(t, p, ErrNoContext)
	assert.True(t, changed(t, p, 0))

	// Mapped and not written: the kernel shows its name already.
	numberf(t, child, "map memfd")
	fails(t, p, ErrBusy)

	stepf(t, child, "payload inside %x", marshal(t, message("late")))
	numberf(t, child, "publish")
	pc := publishes(t, p, "late")

	stepf(t, child, "close")
	assert.True(t, changed(t, p, pc.PublishedAtNS))
	fails(t, p, ErrNoContext)

	publishIn(t, child, "memfd", "again")
	publishes(t, p, "again")
	child.Done()
}

func TestReadTwoContexts(t *testing.T) {
	child := publishing(t, "first")
	numberf(t, child, "map shared")
	stepf(t, child, "payload inside %x", marshal(t, message("second")))
	numberf(t, child, "seed")
	fails(t, open(t, child.PID()), ErrInvalid)
}

func TestReadTruncatedMemfd(t *testing.T) {
	childproc.NeedReading(t)
	child := childproc.Start(t, "publisher", nil)
	publishIn(t, child, "shared", "x")
	p := open(t, child.PID())
	pc, err := p.ProcessContext(t.Context())
	require.NoError(t, err)

	// The mapping is still there, and nothing behind it: its owner would be killed
	// for reading it (SIGBUS).
	stepf(t, child, "truncate")
	assert.True(t, changed(t, p, pc.PublishedAtNS))
	for _, p := range []*Process{p, open(t, child.PID())} {
		_, err := p.ProcessContext(t.Context())
		require.Error(t, err)
		assertDocumented(t, err, child.PID())
	}
	child.Done()
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
	republish(t, child, "sane again")
	publishes(t, p, "sane again")
}

func TestReadKilled(t *testing.T) {
	child, p, pc := reading(t, "x")
	unread := open(t, child.PID())
	child.Kill()

	for _, p := range []*Process{p, unread} {
		changed, err := p.Changed(pc.PublishedAtNS)
		assertKind(t, ErrProcessGone, err, child.PID())
		assert.Contains(t, []bool{true, false}, changed)
		for range 2 {
			fails(t, p, ErrProcessGone)
		}
	}
	_, err := Open(child.PID())
	assertKind(t, ErrProcessGone, err, child.PID())
}

func TestReadZombie(t *testing.T) {
	child, p, pc := reading(t, "x")
	child.Zombie()
	defer child.Kill()

	_, err := p.Changed(pc.PublishedAtNS)
	assertKind(t, ErrProcessGone, err, child.PID())
	for _, p := range []*Process{p, open(t, child.PID())} {
		_, err = p.ProcessContext(t.Context())
		require.Error(t, err)
		assertDocumented(t, err, child.PID())
		require.NotErrorIs(t, err, ErrBusy)
		require.NotErrorIs(t, err, ErrInvalid)
	}
}

func TestReadStoppedInUpdate(t *testing.T) {
	child, p, _ := reading(t, "first")

	stepf(t, child, "update-start")
	require.NoError(t, syscall.Kill(child.PID(), syscall.SIGSTOP))
	for _, p := range []*Process{p, open(t, child.PID())} {
		fails(t, p, ErrBusy)
	}
	require.NoError(t, syscall.Kill(child.PID(), syscall.SIGCONT))
	republish(t, child, "second")
	publishes(t, p, "second")

	// A stopped process that is not in the middle of something can be read.
	require.NoError(t, syscall.Kill(child.PID(), syscall.SIGSTOP))
	publishes(t, open(t, child.PID()), "second")
	require.NoError(t, syscall.Kill(child.PID(), syscall.SIGCONT))
}

func TestReadAfterExec(t *testing.T) {
	child, p, pc := reading(t, "x")

	child.Send("exec")
	child.Expect("idle")
	assert.True(t, changed(t, p, pc.PublishedAtNS))
	for _, p := range []*Process{p, open(t, child.PID())} {
		fails(t, p, ErrNoContext)
	}
}

func TestReadKernelThread(t *testing.T) {
	if comm, err := os.ReadFile("/proc/2/comm"); err != nil || string(comm) != "kthreadd\n" {
		t.Skip("no kernel threads to be seen: not in the first PID namespace")
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

// Memory is not readable, by way of the maps and by way of the memory itself.
func TestReadNotPermitted(t *testing.T) {
	child, p, pc := reading(t, "x")
	if os.Geteuid() == 0 {
		other := childproc.Start(t, "nobody", nil)
		other.Send("%d", child.PID())
		prefix := fmt.Sprintf("true pid %d: not permitted to read the process: ", child.PID())
		for _, way := range []string{"process_vm_readv", "process_vm_readv", "open"} {
			got := other.Receive()
			assert.True(t, strings.HasPrefix(got, prefix+way), "%q", got)
		}
		other.Expect("reported 1")
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
	// Changed looks at the memory alone: what it finds there is another publication.
	assert.Equal(t, "true false <nil>", first)
	second := child.Receive()
	assert.True(t, strings.HasPrefix(second, "true pid "), "read the context of another process: %q", second)
	child.Expect("at the same address: true")
	child.Done()
}

// published returns which of the children are found, and their services. It fails
// the test on an error about one of them.
func published(t *testing.T, ctx context.Context, children ...*childproc.Child) map[int]string {
	t.Helper()
	found := make(map[int]string)
	for p, err := range Publishers(ctx) {
		for _, c := range children {
			if err != nil {
				// Others on this host may be anything.
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

func TestPublishers(t *testing.T) {
	ctx := context.Background()
	children := []*childproc.Child{publishing(t, "one"), publishing(t, "two"), publishing(t, "three")}
	want := map[int]string{children[0].PID(): "one", children[1].PID(): "two", children[2].PID(): "three"}
	silent := childproc.Start(t, "idle", nil)
	silent.Expect("idle")
	all := append(slices.Clone(children), silent)
	assert.Equal(t, want, published(t, ctx, all...))

	// One that is being updated publishes.
	busy := children[1]
	stepf(t, busy, "update-start")
	seen := false
	for p, err := range Publishers(ctx) {
		if err != nil {
			continue
		}
		seen = seen || p.PID() == busy.PID()
		require.NoError(t, p.Close())
	}
	assert.True(t, seen)
	numberf(t, busy, "update-end")

	// One that is invalid is reported.
	invalid := children[2]
	publishIn(t, invalid, "shared", "second")
	var reported error
	for p, err := range Publishers(ctx) {
		if err == nil {
			assert.NotEqual(t, invalid.PID(), p.PID())
			require.NoError(t, p.Close())
		} else if assert.Nil(t, p); strings.HasPrefix(err.Error(), fmt.Sprintf("pid %d: ", invalid.PID())) {
			reported = err
		}
	}
	assertKind(t, ErrInvalid, reported, invalid.PID())

	// Whoever looks may have seen enough.
	for p, err := range Publishers(ctx) {
		if err == nil {
			require.NoError(t, p.Close())
			break
		}
	}

	children[0].Kill()
	delete(want, children[0].PID())
	delete(want, invalid.PID())
	assert.Equal(t, want, published(t, ctx, children[0], busy, silent))
	busy.Done()
	invalid.Kill()
	silent.Done()
	assert.Empty(t, published(t, ctx, all...))
}

// countdown is a context that is done after having been asked so many times.
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

func TestPublishersOfWhichOneEnds(t *testing.T) {
	first, second := publishing(t, "first"), publishing(t, "second")
	ended := false
	for p, err := range Publishers(context.Background()) {
		if err != nil {
			assert.NotContains(t, err.Error(), fmt.Sprintf("pid %d: ", second.PID()), "nobody need know that it was there")
			continue
		}
		if p.PID() == first.PID() {
			// Listed already, unless there are very many processes.
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
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	asked := 0
	for p, err := range Publishers(ctx) {
		asked++
		require.EqualError(t, err, "list processes: context canceled")
		require.ErrorIs(t, err, context.Canceled)
		assert.Nil(t, p)
	}
	assert.Equal(t, 1, asked)

	// Done at every point of the search, of which later ones are much alike, until one is
	// long enough to find all.
	alike := testenv.Rounds(8, math.MaxInt)
	for asked := 0; asked < 100_000; asked += 1 + asked/alike {
		var cancelled, found int
		for p, err := range Publishers(&countdown{asked}) {
			assert.Zero(t, cancelled, "the sequence went on after its context's end")
			switch {
			case err == nil:
				if p.PID() == child.PID() {
					found++
				}
				require.NoError(t, p.Close())
			case errors.Is(err, context.Canceled):
				assert.Nil(t, p)
				cancelled++
			}
		}
		if cancelled == 0 {
			assert.Equal(t, 1, found)
			return
		}
		require.Equal(t, 1, cancelled)
	}
	t.Fatal("never found all")
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
		t.Run(tt.name, func(t *testing.T) {
			age, err := (&ProcessContext{PublishedAtNS: tt.at}).Age()
			require.NoError(t, err)
			assert.GreaterOrEqual(t, age, tt.from)
			assert.LessOrEqual(t, age, tt.to)
		})
	}
	for _, at := range []uint64{uint64(time.Now().Add(time.Hour).UnixNano()), math.MaxInt64, math.MaxUint64} {
		_, err := (&ProcessContext{PublishedAtNS: at}).Age()
		require.ErrorContains(t, err, "lies ahead")
	}
}
