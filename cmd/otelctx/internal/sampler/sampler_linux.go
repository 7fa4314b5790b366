// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/otelctx/otelctx/reader"
)

// Sampler samples the processes that it watches, from [Open] to [Sampler.Stop]. It is
// safe for concurrent use, but only one goroutine may read. [Sampler.Close] releases it.
type Sampler struct {
	objects programObjects
	timers  timers
	ring    *ringbuf.Reader
	record  ringbuf.Record

	// base and bootBase are the same moment on two clocks.
	base     time.Time
	bootBase uint64

	mu sync.Mutex
	// places has the number of the layout of each process that is watched, free those
	// that are nobody's, the one that has been for the longest time first: a sample
	// that is being taken may still look at one.
	places map[int]uint32
	free   []uint32
	// lost is what was lost until the end.
	lost    uint64
	stopped bool
	closed  bool
	// drained says that there will be no more samples. It is the reader's.
	drained bool
}

// pollInterval is how long samples may wait to be read. Being woken for each of them
// would cost more than they do.
const pollInterval = 100 * time.Millisecond

// Open starts to sample. No process is watched yet.
//
// The error wraps [ErrNotPermitted], or [errors.ErrUnsupported] where the kernel has not
// what it takes; else it names the field of the config that cannot be met, or what
// failed.
func Open(c Config) (_ *Sampler, err error) {
	if c.Frequency < 1 {
		return nil, fmt.Errorf("a frequency of %d", c.Frequency)
	}
	if err := permitted(); err != nil {
		return nil, err
	}
	s := &Sampler{places: make(map[int]uint32), free: make([]uint32, MaxProcesses)}
	for i := range s.free {
		s.free[i] = uint32(i)
	}
	defer func() {
		if err != nil {
			err = errors.Join(explain(err), s.Close())
		}
	}()
	err = s.load(c)
	if errors.Is(err, syscall.EPERM) && unlockMemory() == nil {
		err = s.load(c)
	}
	if err != nil {
		return nil, err
	}
	if s.ring, err = ringbuf.NewReader(s.objects.Events); err != nil {
		return nil, fmt.Errorf("ring buffer: %w", err)
	}
	s.ring.SetDeadline(time.Now().Add(pollInterval))
	if s.base, s.bootBase, err = sameMoment(); err != nil {
		return nil, err
	}
	if s.timers, err = startTimers(c.Frequency, s.objects.Sample.FD()); err != nil {
		return nil, err
	}
	return s, nil
}

// load loads the program.
func (s *Sampler) load(c Config) error {
	spec, err := loadProgram()
	if err != nil {
		return err
	}
	size := c.BufferSize
	if size == 0 {
		processors, err := ebpf.PossibleCPU()
		if err != nil {
			return err
		}
		size = bufferSize(c.Frequency, processors)
	}
	spec.Maps[programMapEvents].MaxEntries = uint32(size)
	namespace, err := pidNamespace()
	if err != nil {
		return err
	}
	for variable, value := range map[string]any{
		programVarPidNamespace: namespace,
		programVarKernelStacks: c.KernelStacks,
		// Before it is full, since the reader needs its time too.
		programVarWakeAt: uint32(size / 4),
	} {
		if err := spec.Variables[variable].Set(value); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
	}
	if err := spec.LoadAndAssign(&s.objects, nil); err != nil {
		return fmt.Errorf("load the BPF program: %w", err)
	}
	return nil
}

// bufferSize returns the size of a buffer that takes what a second brings forth: samples
// with stacks of common depth, of all processors.
func bufferSize(frequency, processors int) int {
	const sampleSize = 640
	size := os.Getpagesize()
	for size < sampleSize*frequency*processors && size < 64<<20 {
		size *= 2
	}
	return size
}

// Watch has a process sampled from now on, its spans by layout; if that is nil, or shows
// nothing, without spans. For one that is watched already the layout is replaced. The
// process ids are those of the caller's PID namespace; whether there is such a process
// is not looked at.
//
// The error wraps [ErrTooManyProcesses], or is the kernel's.
func (s *Sampler) Watch(pid int, layout *reader.ThreadLayout) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return os.ErrClosed
	}
	if len(s.free) == 0 {
		return fmt.Errorf("%w: more than %d", ErrTooManyProcesses, MaxProcesses-1)
	}
	place := s.free[0]
	l := newLayout(pid, layout)
	if err := s.objects.Layouts.Put(place, &l); err != nil {
		return fmt.Errorf("watch %d: %w", pid, err)
	}
	if err := s.objects.Watched.Put(uint32(pid), place); err != nil {
		return fmt.Errorf("watch %d: %w", pid, err)
	}
	s.free = s.free[1:]
	if old, ok := s.places[pid]; ok {
		s.free = append(s.free, old)
	}
	s.places[pid] = place
	return nil
}

// Unwatch has a process sampled no longer. Samples that were taken before may still be
// read. For one that is not watched it does nothing.
func (s *Sampler) Unwatch(pid int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	place, ok := s.places[pid]
	if !ok || s.closed {
		return nil
	}
	if err := s.objects.Watched.Delete(uint32(pid)); err != nil {
		return fmt.Errorf("unwatch %d: %w", pid, err)
	}
	delete(s.places, pid)
	s.free = append(s.free, place)
	return nil
}

// Read waits for a sample and fills to with it, reusing the memory of its stacks. It is
// up to a tenth of a second late. After [Sampler.Stop], and when all samples have been
// read, it returns [io.EOF].
func (s *Sampler) Read(to *Sample) error {
	for !s.drained {
		err := s.ring.ReadInto(&s.record)
		switch {
		case err == nil:
			at, err := to.decode(s.record.RawSample)
			if err != nil {
				return err
			}
			to.Time = s.base.Add(time.Duration(at - s.bootBase))
			return nil
		case errors.Is(err, ringbuf.ErrFlushed):
			s.drained = true
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.ring.SetDeadline(time.Now().Add(pollInterval))
		default:
			return fmt.Errorf("read samples: %w", err)
		}
	}
	return io.EOF
}

// Stop ends sampling: what has been sampled by then can still be read.
func (s *Sampler) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.closed {
		return nil
	}
	s.stopped = true
	return errors.Join(s.timers.stop(), s.ring.Flush())
}

// Lost returns how many samples of watched processes have been lost so far because they
// were not read in time.
func (s *Sampler) Lost() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.count()
	}
	return s.lost
}

// count counts the samples that have been lost.
func (s *Sampler) count() {
	var counts []programCounts
	if s.objects.Counted == nil || s.objects.Counted.Lookup(uint32(0), &counts) != nil {
		return
	}
	s.lost = 0
	for _, c := range counts {
		s.lost += c.Lost
	}
}

// Close ends sampling and releases everything. It returns what went wrong the first
// time.
func (s *Sampler) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := s.timers.stop()
	s.count()
	s.closed = true
	if s.ring != nil {
		err = errors.Join(err, s.ring.Close())
	}
	if s.objects.Sample != nil {
		err = errors.Join(err, s.objects.Close())
	}
	s.places, s.free = nil, slices.Delete(s.free, 0, len(s.free))
	return err
}
