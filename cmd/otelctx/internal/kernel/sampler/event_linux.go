// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

var (
	errMalformed = errors.New("malformed sample")
	headerSize   = binary.Size(programHeader{})
	threadSize   = binary.Size(programThread{})
)

// decode fills s, except Time and Truncated, with a sample from the BPF program. It reuses the memory of
// the stacks. The returned time is CLOCK_BOOTTIME in nanoseconds.
func (s *Sample) decode(b []byte) (bootNS uint64, err error) {
	var h programHeader
	if _, err := binary.Decode(b, binary.NativeEndian, &h); err != nil {
		return 0, fmt.Errorf("%w: %w", errMalformed, err)
	}
	data := b[headerSize:]
	user, kernel := int(h.UserSize), int(h.KernelSize)
	if user+kernel+int(h.AttrsSize) > len(data) {
		return 0, fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	*s = Sample{
		Event: Event(h.Kind), Image: newImage(h.Image), TID: int(h.Tid), OwnTID: int(h.OwnTid), CPU: int(h.Cpu),
		Allocated: h.Allocated, Address: h.Address, Goroutine: h.Goid,
		User: addresses(s.User[:0], data[:user]), Kernel: addresses(s.Kernel[:0], data[user:user+kernel]),
	}
	comm, _, _ := bytes.Cut(h.Comm[:], []byte{0})
	s.Comm = string(comm)
	switch programCarrier(h.Carrier) {
	case programCarrierNO_CARRIER:
	case programCarrierLABELS:
		s.Span = spanOfLabels(data[user+kernel:][:h.AttrsSize])
	default:
		s.Span = Span{
			TraceFlags: h.TraceFlags, Carrier: Carrier(h.Carrier), Proven: h.Proven != 0,
			Attributes: string(data[user+kernel:][:h.AttrsSize]), Name: h.Names[0], Endpoint: h.Names[1],
		}
		binary.NativeEndian.PutUint64(s.Span.TraceID[:8], h.TraceId[0])
		binary.NativeEndian.PutUint64(s.Span.TraceID[8:], h.TraceId[1])
		binary.NativeEndian.PutUint64(s.Span.SpanID[:], h.SpanId)
		binary.NativeEndian.PutUint64(s.Span.LocalRootSpanID[:], h.LocalRootSpanId)
	}
	return h.Time, nil
}

func newImage(i programImage) Image { return Image{PID: int(i.Pid), start: i.Start, execs: i.Execs} }

// addresses appends the frames in b to frames. If the kernel cannot unwind a stack completely, it fills the
// rest with zeros.
func addresses(frames []uint64, b []byte) []uint64 {
	for ; len(b) >= 8; b = b[8:] {
		if address := binary.NativeEndian.Uint64(b); address != 0 {
			frames = append(frames, address)
		}
	}
	return frames
}

// The events have the same numbers as in the BPF program.
var (
	_ = [1]struct{}{}[CPUTime-Event(programEventKindCPU_TIME)]
	_ = [1]struct{}{}[Allocation-Event(programEventKindALLOCATION)]
	_ = [1]struct{}{}[Freed-Event(programEventKindFREED)]
	_ = [1]struct{}{}[Swept-Event(programEventKindSWEPT)]
)
