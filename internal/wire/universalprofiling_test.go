// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

func TestProfilingThreadGolden(t *testing.T) {
	want := golden.Hex(t, "testdata/profiling_thread.hex")
	got := mapped(ProfilingThreadSize)
	at := (*ProfilingThread)(unsafe.Pointer(&got[0]))
	binary.NativeEndian.PutUint64(got, 7|ProfilingVersionBit|ProfilingValid|ProfilingTracePresent)
	at.Record.TraceFlags = 1
	binary.BigEndian.PutUint64(at.Record.TraceID[:8], traceHigh)
	binary.BigEndian.PutUint64(at.Record.TraceID[8:], traceLow)
	binary.BigEndian.PutUint64(at.Record.SpanID[:], spanID)
	binary.BigEndian.PutUint64(at.Record.TransactionID[:], localRoot)
	at.TID, at.Owner = 1234, 12345
	at.Key = binary.NativeEndian.Uint64(at.Record.SpanID[:])
	assert.Equal(t, want, got)
	assert.EqualValues(t, 7, at.Seq)
	assert.Equal(t, uint8(1), at.Record.Valid)
	assert.Equal(t, uint8(1), at.Record.TracePresent)
	assert.Equal(t, [2]byte{1, 0}, at.Record.LayoutMinorVersion)
	assert.Equal(t, want[4:][:37], unsafe.Slice((*byte)(unsafe.Pointer(&at.Record)), unsafe.Sizeof(at.Record)))
}

func TestProfilingProcessStorageGolden(t *testing.T) {
	want := golden.Hex(t, "testdata/profiling_storage.hex")
	assert.Equal(t, want, ProfilingProcessStorage{ServiceName: "shö", SocketPath: "/tmp/sk"}.Encode())
}

func TestProfilingProcessStorageCutsNames(t *testing.T) {
	long := strings.Repeat("x", MaxProfilingString-1) + "ö" + "more"
	b := ProfilingProcessStorage{ServiceName: long, ServiceEnvironment: long, SocketPath: strings.Repeat("p", maxSocketPath)}.Encode()
	assert.Equal(t, uint32(MaxProfilingString-1), binary.NativeEndian.Uint32(b[2:]))
	assert.Equal(t, long[:MaxProfilingString-1], string(b[6:][:MaxProfilingString-1]))
	assert.LessOrEqual(t, len(b), MaxProfilingProcessStorage)
	assert.Empty(t, cut(strings.Repeat("\x80", 300)), "not UTF-8 at all")
}

func TestProfilingMessagesGolden(t *testing.T) {
	for file, want := range map[string]interface{ Encode() []byte }{
		"profiling_correlation.hex": ProfilingCorrelation{
			TraceID:       [16]byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10},
			TransactionID: [8]byte{0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x01},
			StackTraceID:  [16]byte{0x60, 0xb4, 0x20, 0xbb, 0x38, 0x51, 0xd9, 0xd4, 0x7a, 0xcb, 0x93, 0x3d, 0xbe, 0x70, 0x39, 0x9b},
			Count:         2,
		},
		"profiling_registration.hex": ProfilingRegistration{SamplesDelayMS: 2500, HostID: "host-1"},
	} {
		encoded := golden.Hex(t, "testdata/"+file)
		got, err := ParseProfilingMessage(encoded)
		require.NoError(t, err)
		assert.Equal(t, want, got)
		assert.Equal(t, encoded, want.Encode())
	}
}

func TestParseProfilingMessage(t *testing.T) {
	correlation := ProfilingCorrelation{TraceID: [16]byte{1}, Count: 1}.Encode()
	registration := ProfilingRegistration{SamplesDelayMS: 1, HostID: "host"}.Encode()
	put := func(b []byte, at int, value ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], value)
		return b
	}
	kind := func(b []byte, kind uint16) []byte { return put(b, 0, binary.NativeEndian.AppendUint16(nil, kind)...) }
	minor := func(b []byte, version uint16) []byte {
		return put(b, 2, binary.NativeEndian.AppendUint16(nil, version)...)
	}
	length := func(b []byte, n uint32) []byte { return put(b, 8, binary.NativeEndian.AppendUint32(nil, n)...) }
	long := ProfilingRegistration{HostID: strings.Repeat("h", MaxProfilingHostID)}
	longer := ProfilingRegistration{HostID: strings.Repeat("h", MaxProfilingHostID+1)}
	for name, tt := range map[string]struct {
		message []byte
		err     error
	}{
		"correlation":                         {correlation, nil},
		"registration":                        {registration, nil},
		"without a host id":                   {ProfilingRegistration{}.Encode(), nil},
		"longest host id":                     {long.Encode(), nil},
		"longer host id":                      {longer.Encode(), ErrProfilingMessage},
		"empty":                               {nil, ErrProfilingMessage},
		"part of a header":                    {correlation[:3], ErrProfilingMessage},
		"correlation cut off":                 {correlation[:45], ErrProfilingMessage},
		"registration cut off":                {registration[:11], ErrProfilingMessage},
		"host id cut off":                     {registration[:15], ErrProfilingMessage},
		"host id of 4 GB":                     {length(registration, 1<<32-1), ErrProfilingMessage},
		"host id is not UTF-8":                {ProfilingRegistration{HostID: "\xff"}.Encode(), ErrProfilingMessage},
		"long correlation":                    {append(bytes.Clone(correlation), 0), ErrProfilingMessage},
		"long registration":                   {append(bytes.Clone(registration), 0), ErrProfilingMessage},
		"newer correlation":                   {append(minor(correlation, 2), "more"...), nil},
		"newer registration":                  {append(minor(registration, 65535), "more"...), nil},
		"newer correlation, cut off":          {minor(correlation, 2)[:45], ErrProfilingMessage},
		"minor version 0":                     {minor(correlation, 0), ErrProfilingMessage},
		"unknown type 0":                      {kind(correlation, 0), ErrProfilingMessageType},
		"unknown type 3":                      {kind(registration, 3), ErrProfilingMessageType},
		"unknown type, newer minor, no bytes": {minor(kind(correlation, 9), 7)[:4], ErrProfilingMessageType},
	} {
		message, err := ParseProfilingMessage(tt.message)
		require.ErrorIs(t, err, tt.err, name)
		assert.Equal(t, tt.err == nil, message != nil, name)
	}
}

func FuzzProfilingMessage(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(ProfilingCorrelation{Count: 3}.Encode())
	f.Add(ProfilingRegistration{SamplesDelayMS: 1000, HostID: "host"}.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		message, err := ParseProfilingMessage(b)
		require.Equal(t, err == nil, message != nil)
		var again []byte
		switch m := message.(type) {
		case nil:
			return
		case ProfilingCorrelation:
			again = m.Encode()
		case ProfilingRegistration:
			require.True(t, utf8.ValidString(m.HostID))
			require.LessOrEqual(t, len(m.HostID), MaxProfilingHostID)
			again = m.Encode()
		}
		// Messages of newer minor versions may have more bytes than the encoding of the known
		// fields.
		require.GreaterOrEqual(t, len(b), len(again))
		require.Equal(t, again[4:], b[4:len(again)])
		require.Equal(t, again[:2], b[:2])
		if minor := binary.NativeEndian.Uint16(b[2:]); minor == ProfilingMinorVersion {
			require.Equal(t, again, b)
		}
	})
}
