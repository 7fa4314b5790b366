// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"structs"
	"unsafe"
)

// ThreadContextRecord is the record of OTEP 4947 without its attributes. They follow the record,
// each in the form {key u8, length u8, value}, where the key is an index into [KeyAttributeKeyMap].
type ThreadContextRecord struct {
	_ structs.HostLayout

	TraceID [16]byte
	SpanID  [8]byte
	// Valid is 1 if readers may use the record.
	Valid      uint8
	TraceFlags uint8
	// AttrsDataSize is the size of the attributes in bytes.
	AttrsDataSize uint16
}

const (
	// ThreadContextRecordSize is the size of the record without attributes.
	ThreadContextRecordSize = 28
	// MaxThreadContextRecord is the maximum size of a record with its attributes.
	MaxThreadContextRecord = 640
)

const (
	_ = -(unsafe.Sizeof(ThreadContextRecord{}) ^ ThreadContextRecordSize)
	_ = -(unsafe.Offsetof(ThreadContextRecord{}.SpanID) ^ 16)
	_ = -(unsafe.Offsetof(ThreadContextRecord{}.Valid) ^ 24)
	_ = -(unsafe.Offsetof(ThreadContextRecord{}.TraceFlags) ^ 25)
	_ = -(unsafe.Offsetof(ThreadContextRecord{}.AttrsDataSize) ^ 26)
	_ = -(unsafe.Alignof(ThreadContextRecord{}) ^ 2)
)
