// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"structs"
	"unicode/utf8"
	"unsafe"
)

// The formats of Elastic's Universal Profiling integration. A library defines two symbols: one points
// at a process storage, the other at a record for each thread. A socket receives messages. Numbers are
// in the machine's byte order. Strings are in UTF-8, preceded by their length as a u32.
const (
	// ProfilingProcessSymbol is a pointer to the process storage.
	ProfilingProcessSymbol = "elastic_apm_profiling_correlation_process_storage_v1"
	// ProfilingThreadSymbol is a thread-local pointer to the thread's record.
	ProfilingThreadSymbol = "elastic_apm_profiling_correlation_tls_v1"
	// ProfilingLibraryPrefix and ProfilingLibrarySuffix enclose the name of the
	// library's file; between them are letters, digits, _ and -.
	ProfilingLibraryPrefix = "elastic-jvmti-linux-"
	ProfilingLibrarySuffix = ".so"

	// ProfilingMinorVersion is the minor version of both layouts and both messages.
	ProfilingMinorVersion = 1

	// MaxProfilingString is the maximum size of a name that the OpenTelemetry eBPF profiler
	// accepts; it rejects storages with longer ones.
	MaxProfilingString = 128
)

// ProfilingThreadRecord is the target of a thread's pointer: 37 bytes, packed.
type ProfilingThreadRecord struct {
	_ structs.HostLayout

	LayoutMinorVersion [2]byte
	// Valid is 0 while the thread writes the other fields.
	Valid        uint8
	TracePresent uint8
	TraceFlags   uint8
	TraceID      [16]byte
	SpanID       [8]byte
	// TransactionID is the id of the local root span.
	TransactionID [8]byte
}

// ProfilingThread is a [ProfilingThreadRecord] with additional data for its writers. It fills a
// cache line. The record's first fields share an aligned word with a write counter, so that they
// change in one step.
type ProfilingThread struct {
	_ structs.HostLayout

	// Seq counts the writes.
	Seq    uint32
	Record ProfilingThreadRecord
	_      [3]byte
	// TID is the thread that the record belongs to.
	TID uint32
	// Key is the span's id, in the machine's byte order, and Owner the goroutine that published it.
	Key, Owner uint64
}

// The word at the start of a ProfilingThread.
const (
	ProfilingVersionBit   = ProfilingMinorVersion << 32
	ProfilingValid        = 1 << 48
	ProfilingTracePresent = 1 << 56
)

const (
	// ProfilingThreadRecordSize is the size of the record.
	ProfilingThreadRecordSize = 37
	// ProfilingThreadSize is the size of a ProfilingThread.
	ProfilingThreadSize = 64
)

const (
	_ = -(unsafe.Sizeof(ProfilingThreadRecord{}) ^ ProfilingThreadRecordSize)
	_ = -(unsafe.Offsetof(ProfilingThreadRecord{}.Valid) ^ 2)
	_ = -(unsafe.Offsetof(ProfilingThreadRecord{}.TracePresent) ^ 3)
	_ = -(unsafe.Offsetof(ProfilingThreadRecord{}.TraceFlags) ^ 4)
	_ = -(unsafe.Offsetof(ProfilingThreadRecord{}.TraceID) ^ 5)
	_ = -(unsafe.Offsetof(ProfilingThreadRecord{}.SpanID) ^ 21)
	_ = -(unsafe.Offsetof(ProfilingThreadRecord{}.TransactionID) ^ 29)
	_ = -(unsafe.Sizeof(ProfilingThread{}) ^ ProfilingThreadSize)
	_ = -(unsafe.Offsetof(ProfilingThread{}.Record) ^ 4)
	_ = -(unsafe.Offsetof(ProfilingThread{}.TID) ^ 44)
	_ = -(unsafe.Offsetof(ProfilingThread{}.Key) ^ 48)
	_ = -(unsafe.Offsetof(ProfilingThread{}.Owner) ^ 56)
)

// ProfilingProcessStorage is the target of the process's pointer.
type ProfilingProcessStorage struct {
	ServiceName, ServiceEnvironment, SocketPath string
}

// MaxProfilingProcessStorage bounds the size of an encoded storage whose socket has a path.
const MaxProfilingProcessStorage = 2 + 3*4 + 2*MaxProfilingString + maxSocketPath

// maxSocketPath is the maximum size of a socket's path (sockaddr_un).
const maxSocketPath = 107

// Encode returns the encoded storage. Names that readers would reject are cut between characters.
func (s ProfilingProcessStorage) Encode() []byte {
	b := binary.NativeEndian.AppendUint16(nil, ProfilingMinorVersion)
	b = appendProfilingString(b, cut(s.ServiceName))
	b = appendProfilingString(b, cut(s.ServiceEnvironment))
	return appendProfilingString(b, s.SocketPath)
}

func cut(s string) string {
	if len(s) <= MaxProfilingString {
		return s
	}
	n := MaxProfilingString
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func appendProfilingString(b []byte, s string) []byte {
	return append(binary.NativeEndian.AppendUint32(b, uint32(len(s))), s...)
}

// Message types.
const (
	profilingCorrelationType  = 1
	profilingRegistrationType = 2
)

// Sizes of messages of minor version 1; a registration's host id follows.
const (
	profilingMessageHeader   = 4
	profilingCorrelationSize = profilingMessageHeader + 16 + 8 + 16 + 2
	profilingRegistrationMin = profilingMessageHeader + 4 + 4
)

// MaxProfilingHostID is the maximum size of the host id in a registration.
const MaxProfilingHostID = 1024

// MaxProfilingMessage is larger than any message of a known version: a message that fills a buffer
// of that size may have been cut off.
const MaxProfilingMessage = 4096

// ProfilingRegistration announces an active profiler.
type ProfilingRegistration struct {
	// SamplesDelayMS is the usual maximum time from a sample to its message, in milliseconds.
	SamplesDelayMS uint32
	// HostID is the profiler's host.id.
	HostID string
}

// ProfilingCorrelation reports samples taken in a transaction.
type ProfilingCorrelation struct {
	TraceID       [16]byte
	TransactionID [8]byte
	StackTraceID  [16]byte
	// Count is the number of samples since the last message with the same three ids.
	Count uint16
}

var (
	// ErrProfilingMessage is wrapped by errors about messages that are cut off or contradict their
	// type and version.
	ErrProfilingMessage = errors.New("malformed message")
	// ErrProfilingMessageType is wrapped by errors about unknown types.
	ErrProfilingMessageType = errors.New("unknown message type")
)

// ParseProfilingMessage decodes a datagram into a [ProfilingRegistration] or a
// [ProfilingCorrelation]. It ignores fields that newer minor versions append; minor version 1 must
// not have any. The error wraps [ErrProfilingMessage] or [ErrProfilingMessageType].
func ParseProfilingMessage(b []byte) (any, error) {
	if len(b) < profilingMessageHeader {
		return nil, fmt.Errorf("%w: %d bytes", ErrProfilingMessage, len(b))
	}
	kind, minor := binary.NativeEndian.Uint16(b), binary.NativeEndian.Uint16(b[2:])
	if kind != profilingCorrelationType && kind != profilingRegistrationType {
		return nil, fmt.Errorf("%w: %d", ErrProfilingMessageType, kind)
	}
	if minor < ProfilingMinorVersion {
		return nil, fmt.Errorf("%w: type %d of minor version %d", ErrProfilingMessage, kind, minor)
	}
	var message any
	var rest []byte
	var ok bool
	if kind == profilingCorrelationType {
		message, rest, ok = parseCorrelation(b)
	} else {
		message, rest, ok = parseRegistration(b)
	}
	if !ok {
		return nil, fmt.Errorf("%w: type %d cut off at %d bytes, or its host id is invalid", ErrProfilingMessage, kind, len(b))
	}
	if len(rest) != 0 && minor == ProfilingMinorVersion {
		return nil, fmt.Errorf("%w: type %d with %d bytes too many", ErrProfilingMessage, kind, len(rest))
	}
	return message, nil
}

func parseCorrelation(b []byte) (c ProfilingCorrelation, rest []byte, ok bool) {
	if len(b) < profilingCorrelationSize {
		return c, nil, false
	}
	b = b[profilingMessageHeader:]
	b = b[copy(c.TraceID[:], b):]
	b = b[copy(c.TransactionID[:], b):]
	b = b[copy(c.StackTraceID[:], b):]
	c.Count = binary.NativeEndian.Uint16(b)
	return c, b[2:], true
}

func parseRegistration(b []byte) (r ProfilingRegistration, rest []byte, ok bool) {
	if len(b) < profilingRegistrationMin {
		return r, nil, false
	}
	r.SamplesDelayMS = binary.NativeEndian.Uint32(b[profilingMessageHeader:])
	n := binary.NativeEndian.Uint32(b[profilingMessageHeader+4:])
	b = b[profilingRegistrationMin:]
	if uint64(n) > uint64(len(b)) || n > MaxProfilingHostID || !utf8.Valid(b[:n]) {
		return r, nil, false
	}
	r.HostID = string(b[:n])
	return r, b[n:], true
}

// Encode returns the message's bytes, as a profiler sends it.
func (c ProfilingCorrelation) Encode() []byte {
	b := binary.NativeEndian.AppendUint16(nil, profilingCorrelationType)
	b = binary.NativeEndian.AppendUint16(b, ProfilingMinorVersion)
	b = append(b, c.TraceID[:]...)
	b = append(b, c.TransactionID[:]...)
	b = append(b, c.StackTraceID[:]...)
	return binary.NativeEndian.AppendUint16(b, c.Count)
}

// Encode returns the message's bytes, as a profiler sends it.
func (r ProfilingRegistration) Encode() []byte {
	b := binary.NativeEndian.AppendUint16(nil, profilingRegistrationType)
	b = binary.NativeEndian.AppendUint16(b, ProfilingMinorVersion)
	b = binary.NativeEndian.AppendUint32(b, r.SamplesDelayMS)
	return appendProfilingString(b, r.HostID)
}
