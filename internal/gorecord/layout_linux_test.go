// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/golden"
	"github.com/otelctx/otelctx/internal/wire"
)

// read reads this process's memory as a profiler does.
func read(t *testing.T, address uint64, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	_, err := remotemem.Of(os.Getpid()).ReadAt(b, int64(address))
	if errors.Is(err, syscall.ENOSYS) {
		// Under an emulator, the memory has other addresses for the kernel, so read it directly.
		return bytes.Clone(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(nil), address)), size))
	}
	require.NoError(t, err)
	return b
}

// labelAddress returns the label pointer of the calling goroutine.
func labelAddress(t *testing.T) uint64 {
	t.Helper()
	address, err := strconv.ParseUint(fmt.Sprintf("%p", goruntime.Labels()), 0, 64)
	require.NoError(t, err)
	return address
}

func word(b []byte, at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }

// labelsSeen returns the keys and values of the labels at an address. It reads them as a profiler
// does, as a slice of pairs of strings.
func labelsSeen(t *testing.T, address uint64) (got [][2]string) {
	t.Helper()
	head := read(t, address, 24)
	list := read(t, word(head, 0), 32*int(word(head, 8)))
	for pair := range slices.Chunk(list, 32) {
		got = append(got, [2]string{
			string(read(t, word(pair, 0), int(word(pair, 8)))),
			string(read(t, word(pair, 16), int(word(pair, 24)))),
		})
	}
	return got
}

// A profiler finds everything in a record with only the label pointer and the advertised offsets.
// So the test reads the record without using the types of this package.
func TestLayout(t *testing.T) {
	needRecords(t)
	users, ours := [][2]string{{"abc", ""}, {"user", "x"}}, [][2]string{
		{"span_id", "a1a2a3a4a5a6a7a8"}, {"trace_id", "0102030405060708090a0b0c0d0e0f10"},
	}
	const ids = "0102030405060708090a0b0c0d0e0f10" + "a1a2a3a4a5a6a7a8"
	for _, withdraw := range []bool{false, true} {
		apart(func() {
			setUser("user", "x", "abc", "")
			outermost := newIn(1, 2, 3, 1, nil, nil, nil)
			outermost.SetCell(0x200004, new([wire.Ancestors]wire.Ref), 0)
			previous := newIn(1, 2, 4, 1, nil, nil, outermost)
			ancestors := ancestorsIn(outermost)
			previous.SetCell(0x100002, &ancestors, 0)
			r := newIn(0x0102030405060708, 0x090a0b0c0d0e0f10, 0xa1a2a3a4a5a6a7a8, 0x83, nil, user(), previous)
			ancestors = ancestorsIn(previous)
			r.SetCell(0x300006, &ancestors, 77)
			r.Install()
			address := labelAddress(t)
			record := func() string { return hex.EncodeToString(read(t, address+uint64(Offset), 28)) }
			assert.Equal(t, slices.Concat(users, ours), labelsSeen(t, address))
			assert.Zero(t, (address+uint64(Offset))%2, "alignment")
			assert.Equal(t, ids+"01"+"83"+"0000", record())
			assert.EqualValues(t, 0x300006, word(read(t, address+uint64(RefOffset), 8), 0))
			lineage := read(t, address+uint64(AncestorsOffset), 32)
			assert.Equal(t, []uint64{0x100002, 0x200004, 0, 77}, []uint64{word(lineage, 0), word(lineage, 8), word(lineage, 16), word(lineage, 24)})

			r.End(withdraw)
			assert.Equal(t, ids+"00"+"83"+"0000", record())
			assert.Equal(t, address, labelAddress(t), "installed labels must stay")
			if withdraw {
				assert.Equal(t, users, labelsSeen(t, address))
			} else {
				assert.Equal(t, slices.Concat(users, ours), labelsSeen(t, address))
			}
			runtime.KeepAlive(r) // the test reads the record's memory by address only
		})
	}
}

func TestText(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 16*256 + 10_000 {
		// Begin with each byte value at each position, and continue with random numbers.
		v := uint64(n%256) << (8 * (n / 256 % 8))
		if n >= 8*256 {
			v = random.Uint64()
		}
		r := new(Record)
		binary.BigEndian.PutUint64(r.traceID[:8], v)
		binary.BigEndian.PutUint64(r.traceID[8:], ^v)
		binary.BigEndian.PutUint64(r.spanID[:], v+1)
		r.putText()
		require.Equal(t, fmt.Sprintf("%016x%016x%016x", v, ^v, v+1), string(r.text[:]))
	}
}

// For each type of object, the OTEP 4947 record and its attributes are equal to bytes that were
// written by hand from the specification.
func TestGolden(t *testing.T) {
	needRecords(t)
	want := golden.Hex(t, "../wire/testdata/threadcontext_record.hex")
	small := []Attribute{{0, "method", "GET"}, {2, "empty", ""}}
	for _, fill := range []int{-1, 1, 64 - 9, 65 - 9, 255, 600} {
		all, encoded := slices.Clone(small), string(want[28:])
		for rest := fill; rest >= 0; rest -= 255 {
			value := strings.Repeat("x", min(rest, 255))
			if len(encoded)+2+len(value) > 612 {
				break
			}
			all = append(all, Attribute{3, "a long key of many bytes", value})
			encoded += "\x03" + string([]byte{byte(len(value))}) + value
		}
		for _, users := range []int{0, 1, 8, 9} {
			apart(func() {
				if users > 0 {
					setUser(manyLabels(users)...)
				}
				a := NewAttributes(all)
				r := newIn(0x0123456789abcdef, 0xfedcba9876543210, 0x1122334455667788, 1, a, user(), nil)
				setUser("other", "x")
				variant := newIn(0x0123456789abcdef, 0xfedcba9876543210, 0x1122334455667788, 1, nil, nil, nil).variantIn(a, user(), nil)
				for name, r := range map[string]*Record{"New": r, "Variant": variant} {
					r.Install()
					got := read(t, labelAddress(t)+uint64(Offset), 28+len(encoded))
					assert.Equal(t, want[:26], got[:26], name)
					assert.EqualValues(t, len(encoded), binary.NativeEndian.Uint16(got[26:]), name)
					assert.Equal(t, encoded, string(got[28:]), "%s with %d labels of the user", name, users)
				}
			})
		}
	}
}
