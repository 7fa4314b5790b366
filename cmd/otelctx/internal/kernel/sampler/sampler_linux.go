// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
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

// Sampler samples the watched processes from [Open] to [Sampler.Stop]. It is safe for concurrent use,
// except that only one goroutine may call Read. [Sampler.Close] releases it.
type Sampler struct {
	objects  samplerObjects
	iterator *link.Iter
	timers   timers
	// probes is nil unless allocations are sampled.
	probes   *probes
	ring     *ringbuf.Reader
	mappings mappings
	record   ringbuf.Record
	carrier  Carrier
	// frames is the maximum number of frames in a stack from the kernel.
	frames int

	// base and bootBase are the same moment on the wall clock and on CLOCK_BOOTTIME.
	base     time.Time
	bootBase uint64

	mu sync.Mutex
	// places maps watched processes to the index of their layout. free lists the unused layouts. Layouts
	// that have been unused for the longest time are reused first, because a sample being taken may still
	// read a layout that has just been freed.
	places map[int]uint32
	free   []uint32
	// counts holds the last known counts.
	counts  Counts
	stopped bool
	closed  bool
	// drained reports whether all samples have been read after Stop. Only the reading goroutine uses it.
	drained bool

	// listing is held while the kernel lists the processes. It must not be locked while mu is held. Watch locks
	// only mu, so it does not wait for a list.
	listing sync.Mutex
	nextMu  sync.Mutex
	// next makes the next list of processes. All callers of Image that arrive before it starts share it. It
	// is nil if no caller waits for it to start.
	next func() (map[int]Process, error)
}

// samplerObjects are the programs and maps of a sampler. Programs that the configuration does not need are nil.
type samplerObjects struct {
	Threads    *ebpf.Program
	Sample     *ebpf.Program // of CPU time
	Allocation *ebpf.Program
	Freed      *ebpf.Program
	Swept      *ebpf.Program
	Counted    *ebpf.Map
	Events     *ebpf.Map
	Layouts    *ebpf.Map
	Watched    *ebpf.Map
}

// take takes the objects out of a collection.
func (o *samplerObjects) take(c *ebpf.Collection) {
	*o = samplerObjects{
		Threads: c.DetachProgram(programProgThreads), Sample: c.DetachProgram(programProgSample),
		Allocation: c.DetachProgram(programProgAllocation), Freed: c.DetachProgram(programProgFreed), Swept: c.DetachProgram(programProgSwept),
		Counted: c.DetachMap(programMapCounted), Events: c.DetachMap(programMapEvents),
		Layouts: c.DetachMap(programMapLayouts), Watched: c.DetachMap(programMapWatched),
	}
}

func (o *samplerObjects) close() error {
	// Closing nil does nothing.
	return _ProgramClose(o.Threads, o.Sample, o.Allocation, o.Freed, o.Swept, o.Counted, o.Events, o.Layouts, o.Watched)
}

// pollInterval is how long samples may wait to be read. Waking the reader costs more than reading many
// samples.
const pollInterval = 250 * time.Millisecond

// Open starts sampling. No process is watched yet.
//
// The error wraps [ErrNotPermitted], or [errors.ErrUnsupported] if the kernel lacks a required feature.
// Otherwise it names the invalid field of the config or the operation that failed.
func Open(c Config) (*Sampler, error) {
	if c.Frequency < 0 || c.Frequency == 0 && !c.Allocations {
		return nil, fmt.Errorf("a frequency of %d", c.Frequency)
	}
	if c.Allocations && runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("allocations of programs for %s: %w", runtime.GOARCH, errors.ErrUnsupported)
	}
	if err := permitted(c.Allocations); err != nil {
		return nil, err
	}
	s := &Sampler{mappings: mappings{listener: c.Mappings, rings: map[int][]byte{}}, carrier: c.Carrier, frames: maxFrames(), places: make(map[int]uint32), free: make([]uint32, MaxProcesses)}
	for i := range s.free {
		s.free[i] = uint32(i)
	}
	if err := privilege.Do(func() error { return s.open(c) }); err != nil {
		err = explain(err)
		if c.Allocations && errors.Is(err, errors.ErrUnsupported) {
			err = fmt.Errorf("sampling allocations needs Linux 5.12 or later: %w", err)
		}
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// open performs the steps that need capabilities.
func (s *Sampler) open(c Config) error {
	err := s.load(c)
	if errors.Is(err, syscall.EPERM) && unlockMemory() == nil {
		err = s.load(c)
	}
	if err != nil {
		return err
	}
	if s.iterator, err = link.AttachIter(link.IterOptions{Program: s.objects.Threads}); err != nil {
		return fmt.Errorf("attach the thread iterator: %w", err)
	}
	if s.ring, err = ringbuf.NewReader(s.objects.Events); err != nil {
		return fmt.Errorf("ring buffer: %w", err)
	}
	s.ring.SetDeadline(time.Now().Add(pollInterval))
	if s.base, s.bootBase, err = sameMoment(); err != nil {
		return err
	}
	if c.Allocations {
		s.probes = &probes{programs: map[Event]*ebpf.Program{Allocation: s.objects.Allocation, Freed: s.objects.Freed, Swept: s.objects.Swept}, events: map[int]map[Event]int{}}
	}
	if c.Frequency == 0 {
		return nil
	}
	s.timers = timers{frequency: c.Frequency, program: s.objects.Sample.FD(), online: onlineFile, events: map[int]int{}}
	if c.Mappings != nil {
		s.timers.mappings = &s.mappings
	}
	return s.timers.adjust()
}

func (s *Sampler) load(c Config) error {
	spec, err := loadSpec()
	if err != nil {
		return err
	}
	size := c.BufferSize
	if c.Allocations {
		spec.Maps[programMapWorks].MaxEntries = 1 + preemptibleWorks
	}
	if size == 0 {
		processors, err := ebpf.PossibleCPU()
		if err != nil {
			return err
		}
		size = bufferSize(c.Frequency, processors)
		if c.Carrier == Labels {
			size *= 2 // Each sample contains labels.
		}
		if c.Allocations {
			size = max(size, allocationBuffer)
		}
	}
	spec.Maps[programMapEvents].MaxEntries = uint32(size)
	for variable, value := range map[string]any{
		programVarKernelStacks: c.KernelStacks,
		programVarOnlyLabels:   c.Carrier == Labels,
		// Wake the reader before the buffer is full, because it needs time to read.
		programVarWakeAt: uint32(size / 4),
	} {
		if err := spec.Variables[variable].Set(value); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
	}
	needed := map[string]bool{
		programProgThreads: true, programProgSample: c.Frequency > 0,
		programProgAllocation: c.Allocations, programProgFreed: c.Live, programProgSwept: c.Live,
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !needed[name] })
	if !c.Allocations {
		delete(spec.Maps, programMapNoPrograms)
	}
	delete(spec.Maps, programMapChanges)
	delete(spec.Maps, programMapTold)
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		return fmt.Errorf("load the BPF program: %w", err)
	}
	s.objects.take(loaded)
	loaded.Close()
	return nil
}

// loadSpec returns all BPF programs and maps, for the PID namespace of this process.
func loadSpec() (*ebpf.CollectionSpec, error) {
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	namespace, err := pidNamespace()
	if err != nil {
		return nil, err
	}
	return spec, spec.Variables[programVarPidNamespace].Set(namespace)
}

// bufferSize returns the size of a buffer that holds the samples of all CPUs for one second, if the stacks
// have a typical depth. The size is at most 64 MiB.
func bufferSize(frequency, processors int) int {
	const sampleSize = 640
	size := os.Getpagesize()
	for size < sampleSize*frequency*processors && size < 64<<20 {
		size *= 2
	}
	return size
}

// Watch starts sampling a process for as long as it runs the program image, and reads its spans as layout
// describes. If layout is nil or has no carrier, samples have no spans. For a process that is already
// watched, image and layout replace the previous ones.
//
// The error wraps [ErrTooManyProcesses], is [os.ErrClosed] after [Sampler.Close], or comes from the kernel.
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

// Unwatch stops sampling a process. Samples already taken can still be read. It does nothing if the process
// is not watched.
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
	return s.probes.remove(pid)
}

// Processes returns the processes in the caller's PID namespace by id.
func (s *Sampler) Processes() (map[int]Process, error) {
	s.listing.Lock()
	defer s.listing.Unlock()
	return s.processes()
}

// processes implements Processes. The caller must hold s.listing.
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

// Image returns the program that a process runs. The error wraps [reader.ErrProcessGone] if there is no
// such process.
//
// Callers that arrive while a list is being made share the next one, because the more processes there are,
// the longer a list takes and the more callers wait.
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

// nextProcesses implements s.next.
func (s *Sampler) nextProcesses() (map[int]Process, error) {
	s.listing.Lock()
	defer s.listing.Unlock()
	s.nextMu.Lock()
	s.next = nil // Later callers need a list that starts after their call.
	s.nextMu.Unlock()
	return s.processes()
}

// Processors updates sampling for CPUs that have come online or gone offline since the last call. The
// kernel ends the events of a CPU that goes offline.
func (s *Sampler) Processors() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.closed || s.timers.frequency == 0 {
		return nil
	}
	return privilege.Do(func() error { return s.timers.adjust() })
}

// Read waits for a sample and stores it in *to, reusing the memory of its stacks. Samples arrive up to a
// quarter of a second late. If no sample arrives in that time, Read returns [ErrNoSample]; all samples
// taken before the call have then been read. After [Sampler.Stop] it returns [io.EOF] once all samples have
// been read.
func (s *Sampler) Read(to *Sample) error {
	if s.drained {
		return io.EOF
	}
	asked := time.Now()
	err := s.ring.ReadInto(&s.record)
	switch {
	case err == nil:
		boot, err := to.decode(s.record.RawSample)
		if err != nil {
			return err
		}
		to.Truncated = max(len(to.User), len(to.Kernel)) >= s.frames
		to.Time = s.time(boot)
		s.reportMappings(boot)
		return nil
	case errors.Is(err, ringbuf.ErrFlushed):
		s.drained = true
		return io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.ring.SetDeadline(time.Now().Add(pollInterval))
		s.reportMappings(s.bootBase + uint64(asked.Sub(s.base)))
		return ErrNoSample
	default:
		return fmt.Errorf("read samples: %w", err)
	}
}

// time converts boot, a time of CLOCK_BOOTTIME, to wall-clock time as in [Sample.Time].
func (s *Sampler) time(boot uint64) time.Time { return s.base.Add(time.Duration(boot - s.bootBase)) }

// reportMappings passes the mappings made by the given time, which is on CLOCK_BOOTTIME, to Config.Mappings.
func (s *Sampler) reportMappings(boot uint64) {
	if s.mappings.listener == nil {
		return
	}
	made, lost := s.mappings.takeUntil(boot)
	if lost {
		s.mappings.listener.Missed(time.Now())
	}
	for _, m := range made {
		s.mappings.listener.Mapped(m.pid, s.time(m.boot), m.Mapping)
	}
}

// TellsMappings reports whether the kernel reports all mappings to Config.Mappings. It returns false without
// Config.Mappings, or if a ring for the reports could not be allocated.
func (s *Sampler) TellsMappings() bool { return s.mappings.listener != nil && s.mappings.complete() }

// Stop ends sampling. Samples already taken can still be read.
func (s *Sampler) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.closed {
		return nil
	}
	s.stopped = true
	return errors.Join(s.timers.stop(), s.probes.stop(), s.ring.Flush())
}

// Counts returns the numbers of missing samples so far.
func (s *Sampler) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.count()
	}
	return s.counts
}

// count updates the counts from the BPF program's counters.
func (s *Sampler) count() {
	var counts []programCounts
	if s.objects.Counted == nil || privilege.Do(func() error { return s.objects.Counted.Lookup(uint32(0), &counts) }) != nil {
		return
	}
	s.counts = Counts{}
	for _, c := range counts {
		s.counts.Lost += c.Lost
		s.counts.Replaced += c.Replaced
		s.counts.Crowded += c.Crowded
		s.counts.FreesLost += c.FreesLost
	}
}

// Close ends sampling and releases everything. Later calls do nothing.
func (s *Sampler) Close() error {
	s.listing.Lock()
	defer s.listing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := errors.Join(s.timers.stop(), s.probes.stop())
	s.count()
	s.closed = true
	if s.ring != nil {
		err = errors.Join(err, s.ring.Close())
	}
	if s.iterator != nil {
		err = errors.Join(err, s.iterator.Close())
	}
	err = errors.Join(err, s.objects.close())
	s.places, s.free = nil, slices.Delete(s.free, 0, len(s.free))
	return err
}
