// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package recording

import (
	"context"
	"encoding/binary"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// load generates samples of many processes. The addresses of their stacks are in this test program.
type load struct {
	all  []*target
	code uint64
}

func newLoad(t *testing.T, processes int) *load {
	t.Helper()
	l := &load{code: uint64(reflect.ValueOf(newLoad).Pointer())}
	l.start(t, os.Getpid(), processes)
	return l
}

// start adds processes that map the same files as a real one.
func (l *load) start(t *testing.T, pid, processes int) {
	t.Helper()
	files := symbols.NewFiles()
	t.Cleanup(files.Close)
	for range processes {
		p, err := openSymbols(files, pid)
		require.NoError(t, err)
		t.Cleanup(func() { _ = p.Close() })
		p.Attach(1)
		one := &target{symbols: p}
		one.references.Add(1 << 30) // Keep it open: the test closes it.
		one.published.Store(newPublished(os.Getpid(), nil))
		l.all = append(l.all, one)
	}
}

// add adds a sample of a process on a CPU, with one of many stacks and in one of many spans.
func (l *load) add(p *batch, at time.Time, process, cpu, stack, span uint64) {
	s := sampler.Sample{
		Time: at, CPU: int(cpu), TID: int(cpu), Comm: "worker",
		Span: sampler.Span{Proven: true, TraceFlags: 1, TraceID: [16]byte{1}, SpanID: [8]byte{byte(cpu), 1}},
	}
	binary.NativeEndian.PutUint32(s.Span.TraceID[4:], uint32(span))
	binary.NativeEndian.PutUint32(s.Span.SpanID[4:], uint32(span))
	const frames = 30
	for frame := range uint64(frames) {
		s.User = append(s.User, l.code+(stack*frame*977+frame*64)%(1<<20))
	}
	p.add(l.all[process], &s)
}

// mostMemory returns the peak memory of this program while f runs, in bytes.
func mostMemory(f func()) uint64 {
	done := make(chan struct{})
	most := make(chan uint64)
	go func() {
		var highest uint64
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			highest = max(highest, m.Sys-m.HeapReleased)
			select {
			case <-done:
				most <- highest
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	f()
	close(done)
	return <-most
}

// TestPartsDoNotOverlap checks that consecutive batches do not overlap, even if CPUs hand over samples out of
// order.
func TestPartsDoNotOverlap(t *testing.T) {
	const period = time.Second
	l := newLoad(t, 1)
	start := time.Now()
	r := &recording{config: &Config{Period: period}, clock: start, batches: make(chan *batch, 2), search: searchOfNone()}
	r.startPeriod(start)
	end := start.Add(period)
	l.add(r.batch, end.Add(time.Microsecond), 0, 0, 1, 1)
	r.rotate(end)
	l.add(r.batch, end.Add(-time.Microsecond), 0, 1, 1, 1)
	r.rotate(end.Add(period))
	first, second := <-r.batches, <-r.batches
	for _, p := range []*batch{first, second} {
		at := p.targets[l.all[0]].order[0].times[0]
		assert.False(t, at.Before(p.begun))
		assert.True(t, at.Before(p.end))
	}
	assert.Equal(t, first.end, second.begun)
	assert.Equal(t, end.Add(period), second.end)
}

// TestMemoryOfManyProcessors checks the memory limits of docs/design/0003-gapless.md for 64 busy CPUs sampled
// at 99 Hz while the collector accepts nothing, and for batches of maximum size.
func TestMemoryOfManyProcessors(t *testing.T) {
	testenv.NeedAll(t)
	const (
		processors = 64
		frequency  = 99
		seconds    = 60
		processes  = 40
		stacks     = 2000 // of a process
		ofSpan     = 5    // samples
	)
	before := debug.SetMemoryLimit(100 << 20) // as otelctx record does
	defer debug.SetMemoryLimit(before)
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
	client, err := export.NewClient("http://127.0.0.1:1")
	require.NoError(t, err)
	queue := export.NewQueue(client)
	l := newLoad(t, processes)
	config := &Config{Profile: queue.Add, Sampler: sampler.Config{Frequency: frequency}}
	n := &symbolizer{config: config, counts: newCounts(&Config{})}
	now := time.Now()
	p, batches := newBatch(now, false), 0
	usual := mostMemory(func() {
		for i := range uint64(processors * frequency * seconds) {
			at := now.Add(time.Duration(i) * time.Second / (processors * frequency))
			l.add(p, at, i%processes, i%processors, i*2654435761%stacks, i/(ofSpan*processors))
			if p.full(at) {
				p.end = at
				n.symbolize(t.Context(), p)
				batches++
				p = newBatch(at, false)
			}
		}
	})
	largest := mostMemory(func() {
		both := []*batch{newBatch(now, false), newBatch(now, false)}
		for _, p := range both {
			for i := uint64(0); p.lost == 0; i++ {
				l.add(p, now, i%processes, i%processors, i, i)
			}
			p.end = now.Add(time.Second)
		}
		n.symbolize(t.Context(), both[0])
		runtime.KeepAlive(both)
	})
	require.NoError(t, queue.Close(context.Background()))
	t.Logf("%d batches of %d s: %d MiB; of the largest: %d MiB", batches, seconds, usual>>20, largest>>20)
	assert.Less(t, usual, uint64(150<<20))
	assert.Less(t, largest, uint64(354<<20)) // Everything else in the document sums up to less than 158 MiB.
}

// TestAttributesOfABatchAreBounded checks that equal attributes count only once for the size of a batch, with
// their size in the profile. If a process has used up its share, its further samples have no attributes, but
// the samples of other processes still do.
func TestAttributesOfABatchAreBounded(t *testing.T) {
	const attributes = 150 // of a sample
	l := newLoad(t, 2)
	p := newBatch(time.Now(), false)
	add := func(process int, number uint32) *rawSamples {
		span := sampler.Span{Proven: true, TraceID: [16]byte{1}, SpanID: [8]byte{1}}
		var encoded []byte
		for key := range byte(attributes) {
			encoded = binary.NativeEndian.AppendUint32(append(encoded, key, 4), number)
		}
		span.Attributes = string(encoded)
		p.add(l.all[process], &sampler.Sample{Time: p.begun, User: []uint64{l.code}, Span: span})
		of := p.targets[l.all[process]]
		return of.order[len(of.order)-1]
	}
	full := uint32(1)
	for !add(0, full).cut {
		full++
	}
	assert.Less(t, full, uint32(maxBatchBytes/3/attributes/250))
	assert.True(t, p.full(p.begun))
	for number := range uint32(10_000) {
		require.Empty(t, add(0, full+1+number).span.Attributes)
	}
	reduced := cut(p.targets[l.all[0]])
	assert.EqualValues(t, 10_001, reduced+p.lost)
	assert.Less(t, p.bytes, maxBatchBytes/2)

	require.NotEmpty(t, add(1, 1).span.Attributes)
	before := p.bytes
	for range 100 {
		add(1, 1)
	}
	assert.Equal(t, before, p.bytes)

	for wanted, count := range map[string]uint64{strconv.Itoa(os.Getpid()): reduced, "another": 0} {
		one := newBatch(p.begun, false)
		one.targets = maps.Clone(p.targets)
		n := &symbolizer{config: &Config{Filters: filter.Filters{{Key: "process.pid", Value: wanted}}}, counts: newCounts(&Config{})}
		n.symbolize(t.Context(), one)
		var r Result
		n.counts.report(&r)
		assert.Equal(t, count, r.Cut, "samples that pass the filter")
		assert.Equal(t, count, r.Truncated)
	}
}

// cut counts the samples of a process that were reduced to the innermost frame.
func cut(samples *targetSamples) (n uint64) {
	for _, s := range samples.order {
		if s.cut {
			n += uint64(len(s.times))
		}
	}
	return n
}

// TestUsersShareAPart checks that the processes of one user leave room for others.
func TestUsersShareAPart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user takes root: CAP_SETUID")
	}
	attacker := childproc.Start(t, busyservice.Role, func(cmd *exec.Cmd) {
		cmd.Path = programs.Public(t, cmd.Path, "attacker")
		childproc.AsNobody(cmd)
	})
	l := newLoad(t, 1)
	l.start(t, attacker.PID(), 40)
	for name, stacks := range map[string]uint64{"memory": 1 << 30, "samples": 1} {
		p := newBatch(time.Now(), false)
		for i := uint64(0); p.lost == 0; i++ {
			l.add(p, p.begun, 1+i%40, 0, i%stacks, i%stacks)
		}
		lost := p.lost
		for i := range uint64(1000) {
			l.add(p, p.begun, 0, 0, i, i)
		}
		assert.Equal(t, lost, p.lost, name)
		assert.Zero(t, cut(p.targets[l.all[0]]), name)
	}
}

// TestNamesAreBounded checks that frames beyond the memory limit keep their addresses.
func TestNamesAreBounded(t *testing.T) {
	l := newLoad(t, 1)
	p := newBatch(time.Now(), false)
	l.add(p, p.begun, 0, 0, 1, 1)
	of := p.targets[l.all[0]]
	for bytes, some := range map[int]bool{maxNamedBytes: true, 0: false} {
		n := &symbolizer{config: &Config{}, counts: newCounts(&Config{}), left: budget{namingLimit, bytes}}
		named := n.names(t.Context(), of)
		assert.Equal(t, some, len(named) > 0)
		assert.Equal(t, some, n.left.bytes < bytes)
		stack, unnamed := n.stack(named, of.order[0].stack)
		assert.NotZero(t, stack[0].Address)
		assert.Equal(t, !some, unnamed)
	}
}
