// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

// The request table: a header, followed by rows of counters. Each row belongs to one or several Ps of the Go
// scheduler, and has a counter for each number of the name table. The number of requests to an endpoint is the sum
// of its counters in all rows.
const (
	// RequestsMagic is the first word of a request table: "OTRQ", most significant byte first.
	RequestsMagic   = 0x4F545251
	RequestsLayout1 = 1

	RequestsHeaderSize = 128
	// RequestCounterSize is the size of a counter, an unsigned integer.
	RequestCounterSize = 8
)

// RequestsIn returns the header at the start of b, which the caller has mapped, and the counters of all rows, which
// follow it. It panics if b is too short or not 8-byte aligned.
func RequestsIn(b []byte) (*TableHeader, []uint64) {
	return tableIn[uint64](b, RequestsHeaderSize)
}
