// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"errors"
	"fmt"
	"time"

	"github.com/otelctx/otelctx/internal/procfs"
)

var (
	// ErrNotPermitted is returned if the kernel does not allow the caller to sample. The wrapping error
	// names the missing capability or the restriction.
	ErrNotPermitted = errors.New("not permitted to sample")
	// ErrProbeNotPermitted wraps ErrNotPermitted. It is returned if the caller lacks CAP_SYS_ADMIN, without which
	// allocations cannot be sampled.
	ErrProbeNotPermitted = fmt.Errorf("%w: without CAP_SYS_ADMIN, which the kernel demands for a probe in a process", ErrNotPermitted)
	// ErrTooManyProcesses is returned by Watch if [MaxProcesses] processes are already watched, even if the
	// process is one of them.
	ErrTooManyProcesses = errors.New("too many processes to sample")
	// ErrNoSysfs is returned by Open if /sys is not mounted.
	ErrNoSysfs = errors.New("/sys is not mounted")
	// ErrNoSample is returned if there has been no sample for a while.
	ErrNoSample = errors.New("no sample")
)

const (
	// MaxProcesses is the maximum number of watched processes.
	MaxProcesses = 4096
	// MaxFrames is the maximum number of frames of a stack, even if the kernel allows more
	// (kernel.perf_event_max_stack).
	MaxFrames = 127
)

// Config configures a [Sampler].
type Config struct {
	// Frequency is the number of samples per second and CPU, from 1 to kernel.perf_event_max_sample_rate. 0 samples no
	// CPU time, but allocations only.
	Frequency int
	// KernelStacks also records the kernel part of stacks.
	KernelStacks bool
	// Carrier is the only carrier to read spans from; zero reads the best one that has a span.
	Carrier Carrier
	// BufferSize is the size in bytes of the buffer for samples that wait to be read; when it is full,
	// samples are lost. It is a power of two and a multiple of the page size. 0 chooses a size for a reader
	// that is at most a second late.
	BufferSize int
	// Mappings, if not nil, receives the code that processes map. It needs a Frequency.
	Mappings Mappings
	// Allocations samples allocations at the places that [Sampler.Probe] is given. Live, which needs it, also reports
	// what becomes of the objects.
	Allocations, Live bool
}

// Event is what a [Sample] is about.
type Event int

const (
	// CPUTime is a sample of CPU time.
	CPUTime Event = iota
	// Allocation is a sample of an allocation.
	Allocation
	// Freed reports that the sweep of a collection frees an object whose allocation was sampled, perhaps before the
	// recording.
	Freed
	// Swept reports that the sweep of a collection is complete, and that the next collection begins. All objects that were
	// allocated before this event are now subject to that collection.
	Swept
)

// Mappings receives new executable mappings of processes. Its methods are called by the goroutine that
// reads samples. Before a sample is returned, all mappings made before the sample was taken are reported,
// in order.
type Mappings interface {
	// Maps reports whether the mappings of a process are of interest.
	Maps(pid int) bool
	// Mapped is called when a process has mapped m, which replaces the previous mappings at these
	// addresses. The time is comparable with that of a [Sample].
	Mapped(pid int, at time.Time, m procfs.Mapping)
	// Missed is called if mappings made before the given time may never be reported.
	Missed(before time.Time)
}

// Image identifies a program that a process runs, from one exec to the next. Images are comparable with ==.
// The zero value means no program.
type Image struct {
	// PID is the process's id in the caller's PID namespace.
	PID int
	// start is the start of the process in nanoseconds of the kernel's CLOCK_BOOTTIME; it distinguishes
	// processes that have had the same id. execs is the kernel's count of the process's execs; it increases
	// with each program.
	start, execs uint64
}

// Process is a running process.
type Process struct {
	Image Image
	// Used is the CPU time of the existing threads in nanoseconds. It does not include ended threads and is
	// meant for detecting changes. It is 0 for kernel threads and for processes that have ended.
	Used uint64
}

// Counts holds the numbers of missing samples.
type Counts struct {
	// Lost counts samples that were not read in time.
	Lost uint64
	// Replaced counts samples that were not taken because the process had already executed another program,
	// or because another process had taken its id.
	Replaced uint64
	// Crowded counts allocations that were not sampled because the kernel had preempted too many samples on
	// the same CPU.
	Crowded uint64
	// FreesLost counts the events Freed that were not read in time.
	FreesLost uint64
}

// Sample is the state of a thread of a watched process when it was interrupted. Process and thread ids are
// those in the caller's PID namespace.
//
// Of the events Freed and Swept, there is no more than Time, Image, TID, CPU and Address. The thread waits until the event is
// in the buffer, and samples are read in the order of the buffer. An event that another one depends on is therefore read
// before it, whatever CPUs they were on: first the allocation of an object, then that it is freed, then the allocation
// of the next object at the same address.
type Sample struct {
	Event Event
	// Time is the time of the interrupt. It is CLOCK_BOOTTIME plus the offset of the wall clock when the
	// sampler was opened, so setting the wall clock does not affect it.
	Time time.Time
	// Image is the program that the process ran.
	Image Image
	// TID is the id of the thread. OwnTID is its id in the thread's own PID namespace.
	TID, OwnTID int
	CPU         int
	// Comm is the name of the thread, at most 15 arbitrary bytes.
	Comm string
	// User and Kernel are the addresses of the stack's frames, the innermost first: the current
	// instruction, then return addresses. They may be truncated. User depends on the program's frame
	// pointers. Kernel is empty unless kernel stacks are enabled and the thread was in the kernel.
	User, Kernel []uint64
	// Truncated reports whether a stack has the maximum number of frames. Such a stack probably lacks the
	// outermost frames.
	Truncated bool
	// Allocated is the number of bytes of a sampled allocation, and Address the address of the object that is allocated
	// or freed. The process claims both. They are 0 for a sample of CPU time.
	Allocated, Address uint64
	// Goroutine is the id of the user goroutine that the thread ran, or for which it was in a system call.
	// It is 0 if there was no such goroutine or its id is unknown.
	Goroutine uint64
	// Span is the span that the thread was in. It is zero if the thread was in no span or the span is
	// unknown.
	Span Span
}

// Span is the span that a thread was in. Two values are equal (==) if they describe the same span and it was
// published in the same way. The zero value is no span.
type Span struct {
	TraceID [16]byte
	SpanID  [8]byte
	// LocalRootSpanID is the id of the outermost span of the trace in the process, or zero if it is
	// unknown.
	LocalRootSpanID [8]byte
	TraceFlags      byte
	// Name and Endpoint are the numbers of the names of the span and of its local root.
	// [reader.Process.Names] returns the names. A number is 0 if the name is unknown.
	Name, Endpoint uint16
	// Attributes are the attributes of the span, encoded as in OTEP 4947. [reader.ThreadLayout.Attributes]
	// decodes them.
	Attributes string
	// Carrier is the carrier that the span was read from.
	Carrier Carrier
	// Proven reports whether the process published this span for the goroutine that the thread ran. Otherwise
	// the process published it only for the thread, which may run another goroutine now. In slots of layout 1
	// it may even be the span of another thread. Labels are proven, although they may outlive their span.
	Proven bool
}

// Exists reports whether there is a span.
func (s *Span) Exists() bool { return s.SpanID != [8]byte{} }

// flagSampled is the sampled flag of W3C Trace Context.
const flagSampled = 1

// Unsampled reports whether a span is known not to be sampled. It returns false for labels and for unproven
// spans, because labels and slots of layout 1 do not carry the flag.
func (s *Span) Unsampled() bool {
	return s.Exists() && s.Proven && s.Carrier != Labels && s.TraceFlags&flagSampled == 0
}
