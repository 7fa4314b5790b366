// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"errors"
	"time"

	"github.com/otelctx/otelctx/internal/procfs"
)

var (
	// ErrNotPermitted says that the kernel does not let the caller sample. The error
	// around it names what is missing.
	ErrNotPermitted = errors.New("not permitted to sample")
	// ErrTooManyProcesses says that no more than [MaxProcesses] can be watched.
	ErrTooManyProcesses = errors.New("too many processes to sample")
	// ErrNoSample says that there has been no sample for a while.
	ErrNoSample = errors.New("no sample")
)

const (
	// MaxProcesses is how many processes can be watched at a time.
	MaxProcesses = 4096
	// MaxFrames is how many frames of a stack there are at most, also where the
	// kernel would give more (kernel.perf_event_max_stack).
	MaxFrames = 127
)

// Config says how to sample.
type Config struct {
	// Frequency is how many samples are taken of each processor in a second, at least
	// 1 and at most what kernel.perf_event_max_sample_rate says.
	Frequency int
	// KernelStacks has samples hold the kernel's part of the stack too.
	KernelStacks bool
	// Carrier is where spans are read from, and nowhere else; zero for the best one that
	// shows a span.
	Carrier Carrier
	// BufferSize is how many bytes of samples can wait to be read; others are lost. It
	// is a power of two and a multiple of the page size. 0 is enough for a reader that
	// is no more than a second late.
	BufferSize int
	// Mappings, if not nil, is told of the code that processes map.
	Mappings Mappings
}

// Mappings is told of the executable mappings that processes make, by the goroutine that reads samples:
// before it gets a sample, of all that were made before the sample was taken, in order.
type Mappings interface {
	// Maps reports whether the mappings of a process are of interest.
	Maps(pid int) bool
	// Mapped is called when a process has mapped m, in place of what was there. The time is as
	// that of a [Sample].
	Mapped(pid int, at time.Time, m procfs.Mapping)
	// Missed is called if there may have been mappings before a time that are never told.
	Missed(before time.Time)
}

// Image is a program that a process runs, from one exec to the next. Images are equal (==)
// if they are the same. The zero value is none.
type Image struct {
	// PID is the process's id in the caller's PID namespace.
	PID int
	// start is when the process was started, in nanoseconds of the kernel's CLOCK_BOOTTIME:
	// another process with this id was started later. execs is the kernel's count of its
	// execs: another program of the process has a higher one.
	start, execs uint64
}

// Process is a process that there is.
type Process struct {
	Image Image
	// Used is what its threads have used of the processors, in nanoseconds. Threads that
	// have ended are not in it: what counts is whether it has changed. It is 0 for kernel
	// threads and processes that have ended.
	Used uint64
}

// Counts are samples that there are not.
type Counts struct {
	// Lost are those that were not read in time.
	Lost uint64
	// Replaced are those that were not taken since the process ran another program by
	// then, or was another one.
	Replaced uint64
}

// Sample is a thread of a watched process as it was interrupted. Process and thread ids
// are those of the caller's PID namespace.
type Sample struct {
	// Time is that of CLOCK_BOOTTIME, turned into the wall clock's by how the two stood
	// when the sampler was opened. So it goes on evenly when the wall clock is set.
	Time time.Time
	// Image is the program that the process ran.
	Image Image
	// TID is the id of the thread, OwnTID the one by which the thread knows itself, in
	// the innermost PID namespace that it is in.
	TID, OwnTID int
	// CPU is the number of the processor.
	CPU int
	// Comm is the name of the thread, at most 15 bytes of any content.
	Comm string
	// User and Kernel are the addresses of the stack's frames, the innermost first:
	// where it is, then where calls return to. They may be cut short, and User is as
	// good as the program's frame pointers. Kernel is empty unless the thread was in
	// the kernel and the kernel's stack was asked for.
	User, Kernel []uint64
	// Truncated says that a stack has as many frames as the kernel gives at most, so that it
	// probably lacks the outermost ones.
	Truncated bool
	// Goroutine is the id of the user's goroutine that the thread ran, or waited for a
	// system call for. It is 0 if there was none, or it is not known.
	Goroutine uint64
	// Span is the span that the thread was in, zero if there was none or it is not known.
	Span Span
}

// Span is the span that a thread was in. Spans are equal (==) if they are the same and were shown in the same
// way. The zero value is none.
type Span struct {
	TraceID [16]byte
	SpanID  [8]byte
	// LocalRootSpanID is the id of the outermost span of the trace in the process;
	// zeros where that is not known.
	LocalRootSpanID [8]byte
	TraceFlags      byte
	// Name and Endpoint are the numbers of the span's name and of that of its local root.
	// [reader.Process.Names] returns the names. A number is 0 where it is not known.
	Name, Endpoint uint16
	// Attributes are those of the span as OTEP 4947 encodes them, which
	// [reader.ThreadLayout.Attributes] decodes.
	Attributes string
	// Carrier is what the span was read from.
	Carrier Carrier
	// Proven says that the process showed this span for the goroutine that the thread
	// ran. If it is false, all that is known is that the span was shown for the thread.
	// Its goroutine may have moved on since. In slots of layout 1 the span may even be
	// another thread's. Labels are the goroutine's, but may outlive their span.
	Proven bool
}

// Exists reports whether there is a span.
func (s *Span) Exists() bool { return s.SpanID != [8]byte{} }

// flagSampled is the flag of W3C's trace context that says that a span is sampled.
const flagSampled = 1

// Unsampled reports whether a span is known not to be sampled. Labels and slots of layout 1,
// whose spans are unproven, do not tell.
func (s *Span) Unsampled() bool {
	return s.Exists() && s.Proven && s.Carrier != Labels && s.TraceFlags&flagSampled == 0
}
