// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/binary"
	"fmt"

	"github.com/otelctx/otelctx/internal/wire"
)

// Validate a header that has been copied from another process.
func ExampleDecodeProcessContextHeader() {
	var b [wire.ProcessContextHeaderSize]byte
	_, err := wire.DecodeProcessContextHeader(&b)
	fmt.Println(err)

	copy(b[:], wire.ProcessContextSignature)
	binary.NativeEndian.PutUint32(b[8:], wire.ProcessContextVersion)
	binary.NativeEndian.PutUint32(b[12:], 453)
	h, err := wire.DecodeProcessContextHeader(&b)
	fmt.Println(h.PayloadSize, "bytes, error:", err)
	fmt.Println(h.ValidatePayload())
	// Output:
	// not a process context header: no signature yet
	// 453 bytes, error: <nil>
	// not a process context header: payload at 0x0
}

// Print the advertised offsets of the fields of a slot.
func ExampleSlotFields() {
	for _, f := range wire.SlotFields(wire.RingLayout1) {
		fmt.Printf("%s: %d bytes at %d\n", f.Name, f.Size, f.Offset)
	}
	// Output:
	// trace_id_high: 8 bytes at 0
	// trace_id_low: 8 bytes at 8
	// span_id: 8 bytes at 16
	// in_use: 1 bytes at 24
}
