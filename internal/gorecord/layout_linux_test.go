// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// read returns memory of this process as a profiler reads it.
func read(t *testing.T, address uint64, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	_, err := remotemem.Of(os.Getpid()).ReadAt(b, int64(address))
	if errors.Is(err, syscall.ENOSYS) {
		// An emulator of processors, which has the memory at other addresses too.
		return bytes.Clone(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), address)), size))
	}
	require.NoError(t, err)
	return b
}

// labelAddress returns what the label pointer of the calling goroutine is.
func labelAddress(t *testing.T) uint64 {
	t.Helper()
	address, err := strconv.ParseUint(fmt.Sprintf("%p", goruntime.Labels()), 0, 64)
	require.NoError(t, err)
	return address
}

func word(b []byte, at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }

// What a profiler finds behind the label pointer, which it knows by these numbers and
// not by this package's types.
func TestLayout(t *testing.T) {
	needRecords(t)
	apart(func() {
		setUser("user", "x", "abc", "")
		r := Begin(0x0102030405060708, 0x090a0b0c0d0e0f10, 0xa1a2a3a4a5a6a7a8, 0x01, nil)
		address := labelAddress(t)

		// The runtime's labelMap: a slice of pairs of strings.
		head := read(t, address, 24)
		require.EqualValues(t, 4, word(head, 8), "len")
		list := read(t, word(head, 0), 4*32)
		var got [][2]string
		for i := range 4 {
			pair := list[32*i:]
			got = append(got, [2]string{
				string(read(t, word(pair, 0), int(word(pair, 8)))),
				string(read(t, word(pair, 16), int(word(pair, 24)))),
			})
		}
		assert.Equal(t, [][2]string{
			{"abc", ""},
			{"span_id", "a1a2a3a4a5a6a7a8"},
			{"trace_id", "0102030405060708090a0b0c0d0e0f10"},
			{"user", "x"},
		}, got)

		// The record of OTEP 4947.
		assert.EqualValues(t, 68, Offset)
		assert.Zero(t, (address+68)%2, "alignment")
		const (
			ids     = "0102030405060708090a0b0c0d0e0f10" + "a1a2a3a4a5a6a7a8"
			valid   = ids + "01" + "01" + "0000"
			invalid = ids + "00" + "01" + "0000"
		)
		record := func() string { return hex.EncodeToString(read(t, address+68, 28)) }
		assert.Equal(t, valid, record())
		r.End()
		assert.Equal(t, invalid, record())
		runtime.KeepAlive(r) // for its memory to be read
		assert.NotEqual(t, address, labelAddress(t))
	})
}

func TestFlags(t *testing.T) {
	needRecords(t)
	apart(func() {
		for _, flags := range []uint8{0, 1, 2, 0x80, 0xff} {
			r := Begin(1, 2, 3, flags, nil)
			b := read(t, labelAddress(t)+68+24, 4)
			assert.Equal(t, []byte{1, flags, 0, 0}, b)
			r.End()
		}
	})
}

func TestHex(t *testing.T) {
	check := func(ids [24]byte) {
		// What is beside it stays as it is.
		b := bytes.Repeat([]byte{'-'}, 1+32+1+16+1)
		putHex((*[16]byte)(b[34:]), nil, &ids)
		require.Equal(t, strings.Repeat("-", 34)+hex.EncodeToString(ids[16:])+"-", string(b))
		clear(b[34:50])
		putHex((*[16]byte)(b[34:]), (*traceText)(b[1:]), &ids)
		require.Equal(t, "-"+hex.EncodeToString(ids[:16])+"-"+hex.EncodeToString(ids[16:])+"-", string(b))
	}
	// Each byte at each place, the others being all kinds of.
	for at := range 24 {
		for v := range 256 {
			var ids [24]byte
			for i := range ids {
				ids[i] = byte(37*v + 11*i)
			}
			ids[at] = byte(v)
			check(ids)
		}
	}
}

// golden returns the bytes of a file of package wire that was written by hand.
func golden(t *testing.T, name string) (all []byte) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "wire", "testdata", name))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if fields := strings.Fields(line); len(fields) > 0 {
			b, err := hex.DecodeString(strings.Join(fields[1:], ""))
			require.NoError(t, err, line)
			all = append(all, b...)
		}
	}
	return all
}

// A record with attributes in whatever object it begins is the one of the format.
func TestGolden(t *testing.T) {
	needRecords(t)
	want := golden(t, "threadcontext_record.hex")
	a := NewAttributes([]Attribute{{0, "method", "GET"}, {2, "empty", ""}})
	for _, users := range []int{0, 1, 8, 9} {
		apart(func() {
			if users > 0 {
				setUser(manyLabels(users)...)
			}
			r := Begin(0x0123456789abcdef, 0xfedcba9876543210, 0x1122334455667788, 1, a)
			assert.Equal(t, want, read(t, labelAddress(t)+68, len(want)), "%d labels of the user", users)
			setUser("other", "x")
			r.Attach(a)
			assert.Equal(t, want, read(t, labelAddress(t)+68, len(want)), "attached")
			r.End()
		})
	}
	// The objects for more.
	for _, size := range []int{32 - 9, 33 - 9, 96 - 9, 97 - 9, 612 - 9 - 2*257} {
		all := []Attribute{{0, "method", "GET"}, {2, "empty", ""}, {3, "fill", strings.Repeat("x", size)}}
		encoded := "\x00\x03GET\x02\x00\x03" + string(byte(size)) + strings.Repeat("x", size)
		if size == 612-9-2*257 {
			most := strings.Repeat("y", 255)
			all = append(all, Attribute{4, "more", most}, Attribute{5, "more yet", most})
			encoded += "\x04\xff" + most + "\x05\xff" + most
			require.Len(t, encoded, 612)
		}
		apart(func() {
			r := Begin(0x0123456789abcdef, 0xfedcba9876543210, 0x1122334455667788, 1, NewAttributes(all))
			got := read(t, labelAddress(t)+68, 28+len(encoded))
			assert.Equal(t, want[:26], got[:26])
			assert.EqualValues(t, len(encoded), binary.NativeEndian.Uint16(got[26:]))
			assert.Equal(t, encoded, string(got[28:]))
			r.End()
		})
	}
}
