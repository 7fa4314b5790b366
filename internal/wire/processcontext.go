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

// Process context, OTEP 4719: a header in a mapping that readers find by its
// name, and a protobuf payload that the header points at.
const (
	// ProcessContextName names the memfd and, by prctl, the mapping.
	ProcessContextName = "OTEL_CTX"
	// ThreadLocalName names the mapping that locates a process's spans if its process context
	// belongs to another library or is missing. It holds a header and a message like a process
	// context. Its attributes begin with ThreadLocalPrefix.
	ThreadLocalName = "OTELCTX_THREADLOCAL"
	// ProcessContextSignature opens every header.
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
	// PublishedAtNS is the CLOCK_BOOTTIME of the publication in nanoseconds; 0 while the header is
	// being changed. Publishers that follow the OTEP's first text store nanoseconds since the
	// epoch.
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
	// ErrProcessContextHeader is wrapped by every error about bytes that are not the header of a
	// process context.
	ErrProcessContextHeader = errors.New("not a process context header")
	// ErrProcessContextUnsigned means that the signature is all zeros, as it is while a context is
	// being published for the first time.
	ErrProcessContextUnsigned = fmt.Errorf("%w: no signature yet", ErrProcessContextHeader)
)

// ProcessContextHeaderIn returns the header at the start of b, which the caller has mapped. The
// header lives as long as b's memory does. It panics if b is too short or not 8-byte aligned: that
// is a bug in the caller's mapping.
func ProcessContextHeaderIn(b []byte) *ProcessContextHeader {
	return (*ProcessContextHeader)(headerIn(b, ProcessContextHeaderSize))
}

// Publish publishes a header whose other fields are complete: it stores the signature and then,
// after a full barrier, the time, which OTEP 4719 as merged requires to be last.
//
// Sound: the signature is 8 bytes at the start of a header, which is aligned to 8
// ([ProcessContextHeaderIn]). So it is one word that can be stored atomically.
func (h *ProcessContextHeader) Publish(publishedAtNS uint64) {
	word := binary.NativeEndian.Uint64([]byte(ProcessContextSignature))
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&h.Signature)), word)
	atomic.StoreUint64(&h.PublishedAtNS, publishedAtNS)
}

// headerIn returns the memory of b as a header of size bytes.
//
// Sound: headers hold no Go pointers and need no more than 8-byte alignment, which their assertions
// imply. Length and alignment are checked here. The result keeps Go memory alive; the owner of a
// mapping, which the garbage collector does not know, keeps the mapping.
func headerIn(b []byte, size uintptr) unsafe.Pointer {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(len(b)) < size || uintptr(p)%8 != 0 {
		panic(fmt.Sprintf("wire: no room for a header of %d bytes in %d bytes at %p", size, len(b), p))
	}
	return p
}

// DecodeProcessContextHeader decodes a header from a copy of its bytes. It verifies the signature
// and the version, as step 2 of the OTEP's reading protocol requires. It does not check the other
// fields, which an update in progress may leave in any state. To check them, call
// [ProcessContextHeader.ValidatePayload].
//
// The error wraps [ErrProcessContextHeader], and may be [ErrProcessContextUnsigned].
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

// ValidatePayload returns an error unless a reader may follow the payload's size and address: a
// size of 1 to [MaxProcessContextPayload] bytes, and an address in the lower half of the address
// space, which contains user memory. The error wraps [ErrProcessContextHeader].
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
// context. These are the possible names:
//
//   - /memfd:OTEL_CTX (deleted): a memfd, if the kernel cannot name it
//   - [anon_shmem:OTEL_CTX]: a memfd named by prctl
//   - [anon:OTEL_CTX]: anonymous memory named by prctl
//
// Like the OTEP's reading protocol, it matches only a prefix, so the caller must also check the header.
func IsProcessContextMapping(name []byte) bool { return isMapping(name, &processContextMappings) }

// IsThreadLocalMapping is [IsProcessContextMapping] for [ThreadLocalName].
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

// MaxValueNesting is the maximum number of arrays and maps around an attribute's value. OTLP sets
// no limit, but OpenTelemetry SDKs cut values at this depth.
const MaxValueNesting = 64

// AttributeSchemaURL is the key of the process context attribute with the schema URL of the
// resource. The message has no field for it.
const AttributeSchemaURL = "otelctx.resource.schema_url"
