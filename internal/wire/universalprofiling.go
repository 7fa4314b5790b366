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

// The formats of Elastic's Universal Profiling integration. A library that the process loads
// defines two symbols: a pointer to a process storage, and a thread-local pointer to a record for
// each thread. The profiler sends messages to a socket of the process. Numbers are in the machine's
// byte order. Strings are UTF-8, preceded by their length as a u32.
const (
	// ProfilingProcessSymbol is the symbol of the pointer to the process storage.
	ProfilingProcessSymbol = "elastic_apm_profiling_correlation_process_storage_v1"
	// ProfilingThreadSymbol is the symbol of the thread-local pointer to the thread's record.
	ProfilingThreadSymbol = "elastic_apm_profiling_correlation_tls_v1"
	// ProfilingLibraryPrefix and ProfilingLibrarySuffix are the start and end of the library's file
	// name. The characters between them are letters, digits, _ and -.
	ProfilingLibraryPrefix = "elastic-jvmti-linux-"
	ProfilingLibrarySuffix = ".so"

	// ProfilingMinorVersion is the minor version of both layouts and both messages.
	ProfilingMinorVersion = 1

	// MaxProfilingString is the maximum size in bytes of a name in a process storage. The
	// OpenTelemetry eBPF profiler rejects storages with longer names.
	MaxProfilingString = 128
)

// ProfilingThreadRecord is the record that a thread's pointer points to: 37 bytes without padding.
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

// ProfilingThread is a cache line with a [ProfilingThreadRecord] and data for its writers. The
// first fields of the record share an aligned word with Seq, so that one atomic operation can
// change them all.
type ProfilingThread struct {
	_ structs.HostLayout

	// Seq counts the writes.
	Seq    uint32
	Record ProfilingThreadRecord
	_      [3]byte
	// TID is the id of the thread that the record belongs to.
	TID uint32
	// Key is the span ID in the machine's byte order. Owner is the id of the goroutine that
	// published the span.
	Key, Owner uint64
}

// Bits of the first word of a ProfilingThread.
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

// ProfilingProcessStorage is the content of the storage that the process's pointer points to.
type ProfilingProcessStorage struct {
	ServiceName, ServiceEnvironment, SocketPath string
}

// MaxProfilingProcessStorage is the maximum size of an encoded storage whose SocketPath is a valid
// path of a Unix socket.
const MaxProfilingProcessStorage = 2 + 3*4 + 2*MaxProfilingString + maxSocketPath

// maxSocketPath is the maximum size of the path of a Unix socket (sockaddr_un), without the
// terminating zero.
const maxSocketPath = 107

// Encode returns the encoded storage. It cuts names that are longer than [MaxProfilingString], but
// never inside a UTF-8 character.
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

// Sizes of messages of minor version 1. profilingRegistrationMin is the size of a registration with
// an empty host id.
const (
	profilingMessageHeader   = 4
	profilingCorrelationSize = profilingMessageHeader + 16 + 8 + 16 + 2
	profilingRegistrationMin = profilingMessageHeader + 4 + 4
)

// MaxProfilingHostID is the maximum size of the host id in a registration.
const MaxProfilingHostID = 1024

// MaxProfilingMessage is the buffer size for receiving messages. Messages of known versions are
// smaller, so one that fills the buffer may have been cut off.
const MaxProfilingMessage = 4096

// ProfilingRegistration announces an active profiler.
type ProfilingRegistration struct {
	// SamplesDelayMS is the usual maximum delay between a sample and the message that reports it,
	// in milliseconds.
	SamplesDelayMS uint32
	// HostID is the attribute host.id with which the profiler exports its data.
	HostID string
}

// ProfilingCorrelation reports samples that the profiler took during a transaction.
type ProfilingCorrelation struct {
	TraceID       [16]byte
	TransactionID [8]byte
	StackTraceID  [16]byte
	// Count is the number of samples since the last message with the same three ids.
	Count uint16
}

var (
	// ErrProfilingMessage is wrapped by errors about messages that are cut off or otherwise invalid
	// for their type and version.
	ErrProfilingMessage = errors.New("malformed message")
	// ErrProfilingMessageType is wrapped by errors about messages of an unknown type.
	ErrProfilingMessageType = errors.New("unknown message type")
)

// ParseProfilingMessage decodes a datagram into a [ProfilingRegistration] or a
// [ProfilingCorrelation]. It ignores bytes after the known fields, which newer minor versions
// append, but rejects them in minor version 1. The error wraps [ErrProfilingMessage] or
// [ErrProfilingMessageType].
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

// Encode returns the message as a profiler sends it.
func (c ProfilingCorrelation) Encode() []byte {
	b := binary.NativeEndian.AppendUint16(nil, profilingCorrelationType)
	b = binary.NativeEndian.AppendUint16(b, ProfilingMinorVersion)
	b = append(b, c.TraceID[:]...)
	b = append(b, c.TransactionID[:]...)
	b = append(b, c.StackTraceID[:]...)
	return binary.NativeEndian.AppendUint16(b, c.Count)
}

// Encode returns the message as a profiler sends it.
func (r ProfilingRegistration) Encode() []byte {
	b := binary.NativeEndian.AppendUint16(nil, profilingRegistrationType)
	b = binary.NativeEndian.AppendUint16(b, ProfilingMinorVersion)
	b = binary.NativeEndian.AppendUint32(b, r.SamplesDelayMS)
	return appendProfilingString(b, r.HostID)
}
