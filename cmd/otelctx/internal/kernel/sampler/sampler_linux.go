// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/privilege"
	"github.com/otelctx/otelctx/reader"
)

// Sampler samples the processes that it watches, from [Open] to [Sampler.Stop]. It is
// safe for concurrent use, but only one goroutine may read. [Sampler.Close] releases it.
type Sampler struct {
	objects  programObjects
	iterator *link.Iter
	timers   timers
	ring     *ringbuf.Reader
	mappings mappings
	record   ringbuf.Record
	carrier  Carrier
	// frames is how many frames of a stack the kernel gives at most.
	frames int

	// base and bootBase are the same moment on two clocks.
	base     time.Time
	bootBase uint64

	mu sync.Mutex
	// places has the number of the layout of each process that is watched. free has the
	// layouts that nobody uses. The one that is free for longest is first, since a
	// sample that is being taken may still look at one.
	places map[int]uint32
	free   []uint32
	// counts are those of the end.
	counts  Counts
	stopped bool
	closed  bool
	// drained says that there will be no more samples. It is the reader's.
	drained bool

	// listing is held while the kernel lists the processes, and before mu. Watching does not wait for that.
	listing sync.Mutex
	nextMu  sync.Mutex
	// next makes the next list of processes, for those who ask for one of them; nil if
	// nobody does.
	next func() (map[int]Process, error)
}

// pollInterval is how long samples may wait to be read. To wake up costs more than many
// samples do.
const pollInterval = 250 * time.Millisecond

// Open starts to sample. No process is watched yet.
//
// The error wraps [ErrNotPermitted], or [errors.ErrUnsupported] where the kernel lacks
// what it takes. Else it names the field of the config that cannot be met, or what
// failed.
func Open(c Config) (*Sampler, error) {
	if c.Frequency < 1 {
		return nil, fmt.Errorf("a frequency of %d", c.Frequency)
	}
	if err := permitted(); err != nil {
		return nil, err
	}
	s := &Sampler{mappings: mappings{told: c.Mappings, rings: map[int][]byte{}}, carrier: c.Carrier, frames: maxFrames(), places: make(map[int]uint32), free: make([]uint32, MaxProcesses)}
	for i := range s.free {
		s.free[i] = uint32(i)
	}
	if err := privilege.Do(func() error { return s.open(c) }); err != nil {
		return nil, errors.Join(explain(err), s.Close())
	}
	return s, nil
}

// open does what takes capabilities.
func (s *Sampler) open(c Config) error {
	err := s.load(c)
	if errors.Is(err, syscall.EPERM) && unlockMemory() == nil {
		err = s.load(c)
	}
	if err != nil {
		return err
	}
	if s.iterator, err = link.AttachIter(link.IterOptions{Program: s.objects.Threads}); err != nil {
		return fmt.Errorf("attach what lists threads: %w", err)
	}
	if s.ring, err = ringbuf.NewReader(s.objects.Events); err != nil {
		return fmt.Errorf("ring buffer: %w", err)
	}
	s.ring.SetDeadline(time.Now().Add(pollInterval))
	if s.base, s.bootBase, err = sameMoment(); err != nil {
		return err
	}
	s.timers = timers{frequency: c.Frequency, program: s.objects.Sample.FD(), online: onlineFile, events: map[int]int{}}
	if c.Mappings != nil {
		s.timers.mappings = &s.mappings
	}
	return s.timers.adjust()
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
		if c.Carrier == Labels {
			size *= 2 // Each sample has labels.
		}
	}
	spec.Maps[programMapEvents].MaxEntries = uint32(size)
	namespace, err := pidNamespace()
	if err != nil {
		return err
	}
	for variable, value := range map[string]any{
		programVarPidNamespace: namespace,
		programVarKernelStacks: c.KernelStacks,
		programVarOnlyLabels:   c.Carrier == Labels,
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

// Watch has a process sampled from now on, its spans by layout, for as long as it runs the
// program that image is. If layout is nil, or shows nothing, it is sampled without spans.
// For one that is watched already both are replaced.
//
// The error wraps [ErrTooManyProcesses], or is the kernel's.
func (s *Sampler) Watch(image Image, layout *reader.ThreadLayout) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return os.ErrClosed
	}
	if len(s.free) == 0 {
		return fmt.Errorf("%w: more than %d", ErrTooManyProcesses, MaxProcesses-1)
	}
	place := s.free[0]
	l := newLayout(image, layout, s.carrier)
	err := privilege.Do(func() error {
		if err := s.objects.Layouts.Put(place, &l); err != nil {
			return err
		}
		return s.objects.Watched.Put(uint32(image.PID), place)
	})
	if err != nil {
		return fmt.Errorf("watch %d: %w", image.PID, err)
	}
	s.free = s.free[1:]
	if old, ok := s.places[image.PID]; ok {
		s.free = append(s.free, old)
	}
	s.places[image.PID] = place
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
	if err := privilege.Do(func() error { return s.objects.Watched.Delete(uint32(pid)) }); err != nil {
		return fmt.Errorf("unwatch %d: %w", pid, err)
	}
	delete(s.places, pid)
	s.free = append(s.free, place)
	return nil
}

// Processes returns the processes that the caller's PID namespace has, by their ids.
func (s *Sampler) Processes() (map[int]Process, error) {
	s.listing.Lock()
	defer s.listing.Unlock()
	return s.processes()
}

// processes is Processes; s.listing is held.
func (s *Sampler) processes() (map[int]Process, error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, os.ErrClosed
	}
	var content []byte
	err := privilege.Do(func() error {
		all, err := s.iterator.Open()
		if err != nil {
			return err
		}
		content, err = io.ReadAll(all)
		return errors.Join(err, all.Close())
	})
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	processes := map[int]Process{}
	for ; len(content) >= threadSize; content = content[threadSize:] {
		var t programThread
		if _, err := binary.Decode(content, binary.NativeEndian, &t); err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		p := processes[int(t.Image.Pid)]
		p.Image = newImage(t.Image)
		p.Used += t.Used
		processes[int(t.Image.Pid)] = p
	}
	return processes, nil
}

// Image returns what a process runs. The error wraps [reader.ErrProcessGone] if there is
// no such process.
//
// Those who ask while a list is being made share the next one. A list takes longer the more
// processes there are, and where there are many, many ask.
func (s *Sampler) Image(pid int) (Image, error) {
	s.nextMu.Lock()
	if s.next == nil {
		s.next = sync.OnceValues(s.nextProcesses)
	}
	next := s.next
	s.nextMu.Unlock()
	all, err := next()
	if err != nil {
		return Image{}, err
	}
	p, ok := all[pid]
	if !ok {
		return Image{}, fmt.Errorf("pid %d: %w", pid, reader.ErrProcessGone)
	}
	return p.Image, nil
}

// nextProcesses is s.next.
func (s *Sampler) nextProcesses() (map[int]Process, error) {
	s.listing.Lock()
	defer s.listing.Unlock()
	s.nextMu.Lock()
	s.next = nil // Who asks from now on is told what holds then.
	s.nextMu.Unlock()
	return s.processes()
}

// Processors has the processors sampled that have come since the last call, and those no
// longer that have gone. The kernel ends what runs on a processor that goes.
func (s *Sampler) Processors() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.closed {
		return nil
	}
	return privilege.Do(func() error { return s.timers.adjust() })
}

// Read waits for a sample and fills to with it, reusing the memory of its stacks. It is
// up to a quarter of a second late. If there is none by then it returns [ErrNoSample]: all that
// were taken before the call have been read. After [Sampler.Stop], and when all samples
// have been read, it returns [io.EOF].
func (s *Sampler) Read(to *Sample) error {
	if s.drained {
		return io.EOF
	}
	asked := time.Now()
	err := s.ring.ReadInto(&s.record)
	switch {
	case err == nil:
		at, err := to.decode(s.record.RawSample)
		if err != nil {
			return err
		}
		to.Truncated = max(len(to.User), len(to.Kernel)) >= s.frames
		to.Time = s.time(at)
		s.tell(at)
		return nil
	case errors.Is(err, ringbuf.ErrFlushed):
		s.drained = true
		return io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.ring.SetDeadline(time.Now().Add(pollInterval))
		s.tell(s.bootBase + uint64(asked.Sub(s.base)))
		return ErrNoSample
	default:
		return fmt.Errorf("read samples: %w", err)
	}
}

// time returns a time of CLOCK_BOOTTIME as that of a sample.
func (s *Sampler) time(boot uint64) time.Time { return s.base.Add(time.Duration(boot - s.bootBase)) }

// tell tells what processes had mapped by a time of CLOCK_BOOTTIME.
func (s *Sampler) tell(boot uint64) {
	if s.mappings.told == nil {
		return
	}
	made, lost := s.mappings.until(boot)
	if lost {
		s.mappings.told.Missed(time.Now())
	}
	for _, m := range made {
		s.mappings.told.Mapped(m.pid, s.time(m.boot), m.Mapping)
	}
}

// TellsMappings reports whether the kernel tells Config.Mappings what processes map. It may have no memory
// for that.
func (s *Sampler) TellsMappings() bool { return s.mappings.told != nil && s.mappings.complete() }

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

// Counts returns what there is not so far.
func (s *Sampler) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.count()
	}
	return s.counts
}

// count counts the samples that there are not.
func (s *Sampler) count() {
	var counts []programCounts
	if s.objects.Counted == nil || privilege.Do(func() error { return s.objects.Counted.Lookup(uint32(0), &counts) }) != nil {
		return
	}
	s.counts = Counts{}
	for _, c := range counts {
		s.counts.Lost += c.Lost
		s.counts.Replaced += c.Replaced
	}
}

// Close ends sampling and releases everything. It returns what went wrong the first
// time.
func (s *Sampler) Close() error {
	s.listing.Lock()
	defer s.listing.Unlock()
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
	if s.iterator != nil {
		err = errors.Join(err, s.iterator.Close())
	}
	if s.objects.Sample != nil {
		err = errors.Join(err, s.objects.Close())
	}
	s.places, s.free = nil, slices.Delete(s.free, 0, len(s.free))
	return err
}
