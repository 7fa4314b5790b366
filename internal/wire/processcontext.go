// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"structs"
	"sync/atomic"
	"unsafe"
)

// The process context of OTEP 4719: a header in a mapping that readers find by its name, and a
// protobuf payload that the header points to.
const (
	// ProcessContextName is the name of the memfd, and the name that prctl gives to the mapping.
	ProcessContextName = "OTEL_CTX"
	// ThreadLocalName is the name of a second mapping, from which readers learn where a process's
	// spans are if the process context belongs to another library or is missing. It has the format
	// of a process context, with attributes whose keys begin with [ThreadLocalPrefix].
	ThreadLocalName = "OTELCTX_THREADLOCAL"
	// ProcessContextSignature is the start of every header.
	ProcessContextSignature = "OTEL_CTX"
	// ProcessContextVersion is the format's version.
	ProcessContextVersion = 2
	// ProcessContextHeaderSize is the size of the header in bytes.
	ProcessContextHeaderSize = 32
	// MaxProcessContextPayload is the maximum size in bytes of a payload that readers accept. The
	// OTEP does not give a limit; the OpenTelemetry eBPF profiler and opentelemetry-go's proposed
	// publisher use the same limit.
	MaxProcessContextPayload = 65536
)

// ProcessContextHeader is the header of OTEP 4719 ("Header Structure").
type ProcessContextHeader struct {
	_ structs.HostLayout

	Signature [8]byte
	Version   uint32
	// PayloadSize is the size of the payload in bytes.
	PayloadSize uint32
	// PublishedAtNS is the CLOCK_BOOTTIME of the publication in nanoseconds, or 0 while the header
	// is being changed. Publishers that follow the first version of the OTEP store nanoseconds
	// since the Unix epoch instead.
	PublishedAtNS uint64
	// Payload is the payload's address in the publishing process.
	Payload uint64
}

// The layout is a contract with readers in other languages. The build fails if it changes, because a
// uintptr constant cannot hold the negative of a difference other than 0.
const (
	_ = -(unsafe.Sizeof(ProcessContextHeader{}) ^ ProcessContextHeaderSize)
	_ = -unsafe.Offsetof(ProcessContextHeader{}.Signature)
	_ = -(unsafe.Offsetof(ProcessContextHeader{}.Version) ^ 8)
	_ = -(unsafe.Offsetof(ProcessContextHeader{}.PayloadSize) ^ 12)
	_ = -(unsafe.Offsetof(ProcessContextHeader{}.PublishedAtNS) ^ 16)
	_ = -(unsafe.Offsetof(ProcessContextHeader{}.Payload) ^ 24)
	_ = -(unsafe.Sizeof(ProcessContextHeader{}.Signature) ^ 8)
	_ = -(unsafe.Sizeof(ProcessContextHeader{}.Version) ^ 4)
	_ = -(unsafe.Sizeof(ProcessContextHeader{}.PayloadSize) ^ 4)
	_ = -(unsafe.Sizeof(ProcessContextHeader{}.PublishedAtNS) ^ 8)
	_ = -(unsafe.Sizeof(ProcessContextHeader{}.Payload) ^ 8)
	_ = -(uintptr(len(ProcessContextSignature)) ^ 8)
)

var (
	// ErrProcessContextHeader is wrapped by all errors about bytes that are not a valid process
	// context header.
	ErrProcessContextHeader = errors.New("not a process context header")
	// ErrProcessContextUnsigned means that the signature is all zeros, as it is until a context has
	// been published for the first time.
	ErrProcessContextUnsigned = fmt.Errorf("%w: no signature yet", ErrProcessContextHeader)
)

// ProcessContextHeaderIn returns the header at the start of b, which the caller has mapped. The
// header must not be used after b has been unmapped. ProcessContextHeaderIn panics if b is too
// short or not 8-byte aligned.
func ProcessContextHeaderIn(b []byte) *ProcessContextHeader {
	return (*ProcessContextHeader)(headerIn(b, ProcessContextHeaderSize))
}

// Publish publishes the header, whose other fields must be complete. It stores the signature and
// then, after a full barrier, the time: the merged text of OTEP 4719 requires the time to be stored
// last.
//
// Sound: the signature is the first word of a header that is 8-byte aligned
// ([ProcessContextHeaderIn]), so it can be stored atomically.
func (h *ProcessContextHeader) Publish(publishedAtNS uint64) {
	word := binary.NativeEndian.Uint64([]byte(ProcessContextSignature))
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&h.Signature)), word)
	atomic.StoreUint64(&h.PublishedAtNS, publishedAtNS)
}

// headerIn returns a pointer to the header of size bytes at the start of b. It panics if b is too
// short or not 8-byte aligned.
//
// Sound: headers hold no Go pointers and need at most 8-byte alignment, and headerIn checks length
// and alignment. If b is on the Go heap, the result keeps it alive. If b is mapped, its owner must
// keep it mapped, because the garbage collector does not know about mappings.
func headerIn(b []byte, size uintptr) unsafe.Pointer {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(len(b)) < size || uintptr(p)%8 != 0 {
		panic(fmt.Sprintf("wire: no room for a header of %d bytes in %d bytes at %p", size, len(b), p))
	}
	return p
}

// DecodeProcessContextHeader decodes a header from a copy of its bytes. It verifies the signature
// and the version, as step 2 of the OTEP's reading protocol requires. It does not check the other
// fields, because they may have any value during an update. [ProcessContextHeader.ValidatePayload]
// checks the size and address of the payload.
//
// Every error wraps [ErrProcessContextHeader]. If there is no signature yet, it is
// [ErrProcessContextUnsigned].
func DecodeProcessContextHeader(b *[ProcessContextHeaderSize]byte) (ProcessContextHeader, error) {
	h := ProcessContextHeader{
		Signature:     [8]byte(b[0:8]),
		Version:       binary.NativeEndian.Uint32(b[8:12]),
		PayloadSize:   binary.NativeEndian.Uint32(b[12:16]),
		PublishedAtNS: binary.NativeEndian.Uint64(b[16:24]),
		Payload:       binary.NativeEndian.Uint64(b[24:32]),
	}
	if h.Signature == [8]byte{} {
		return ProcessContextHeader{}, ErrProcessContextUnsigned
	}
	if string(h.Signature[:]) != ProcessContextSignature {
		return ProcessContextHeader{}, fmt.Errorf("%w: signature %q", ErrProcessContextHeader, string(h.Signature[:]))
	}
	if h.Version != ProcessContextVersion {
		return ProcessContextHeader{}, fmt.Errorf("%w: version %d, supported is %d",
			ErrProcessContextHeader, h.Version, ProcessContextVersion)
	}
	return h, nil
}

// ValidatePayload returns an error if a reader must not read the payload: its size must be 1 to
// [MaxProcessContextPayload] bytes, and it must lie in the lower half of the address space, where
// user memory is. The error wraps [ErrProcessContextHeader].
func (h *ProcessContextHeader) ValidatePayload() error {
	if h.PayloadSize == 0 || h.PayloadSize > MaxProcessContextPayload {
		return fmt.Errorf("%w: payload of %d bytes, must be 1 to %d",
			ErrProcessContextHeader, h.PayloadSize, MaxProcessContextPayload)
	}
	const userSpaceEnd = 1 << 63
	if h.Payload == 0 || h.Payload > userSpaceEnd-uint64(h.PayloadSize) {
		return fmt.Errorf("%w: payload at %#x", ErrProcessContextHeader, h.Payload)
	}
	return nil
}

// IsProcessContextMapping reports whether a line of /proc/pid/maps with this name can be a process
// context. Possible names are:
//
//   - /memfd:OTEL_CTX (deleted): a memfd, if the kernel cannot name it
//   - [anon_shmem:OTEL_CTX]: a memfd named by prctl
//   - [anon:OTEL_CTX]: anonymous memory named by prctl
//
// Like the OTEP's reading protocol, the function matches only a prefix of the name, so the caller
// must also check the header.
func IsProcessContextMapping(name []byte) bool { return isMapping(name, &processContextMappings) }

// IsThreadLocalMapping is like [IsProcessContextMapping], but for mappings named [ThreadLocalName].
func IsThreadLocalMapping(name []byte) bool { return isMapping(name, &threadLocalMappings) }

func isMapping(name []byte, prefixes *[3]string) bool {
	for _, prefix := range prefixes {
		if len(name) >= len(prefix) && string(name[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}

var (
	processContextMappings = mappingNames(ProcessContextName)
	threadLocalMappings    = mappingNames(ThreadLocalName)
)

func mappingNames(name string) [3]string {
	return [3]string{"/memfd:" + name, "[anon_shmem:" + name + "]", "[anon:" + name + "]"}
}

// MaxValueNesting is the maximum number of arrays and maps that may enclose a value in an
// attribute. The innermost value may itself be an array or a map. OTLP sets no limit, but
// OpenTelemetry SDKs cut off values at this depth.
const MaxValueNesting = 64

// AttributeSchemaURL is the key of the process context attribute that holds the resource's schema
// URL, for which the protobuf message has no field.
const AttributeSchemaURL = "otelctx.resource.schema_url"
