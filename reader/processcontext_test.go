// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/wire"
)

func TestProcessContext(t *testing.T) {
	msg := message("checkout")
	payload := marshal(t, msg)
	for _, tt := range []struct {
		name, mapping, wantName string
	}{
		{"memfd", usualMapping, "/memfd:OTEL_CTX (deleted)"},
		{"linked memfd", "7f0000001000-7f0000002000 rw-p 00000000 00:01 1030   /memfd:OTEL_CTX\n", "/memfd:OTEL_CTX"},
		{"named memfd", "7f0000001000-7f0000002000 rw-p 00000000 00:01 1030   [anon_shmem:OTEL_CTX]\n", "[anon_shmem:OTEL_CTX]"},
		{"named memory", "7f0000001000-7f0000002000 rw-p 00000000 00:00 0      [anon:OTEL_CTX]\n", "[anon:OTEL_CTX]"},
		{"shared", "7f0000001000-7f0000002000 rw-s 00000000 00:01 1030   /memfd:OTEL_CTX (deleted)\n", "/memfd:OTEL_CTX (deleted)"},
		{"read only", "7f0000001000-7f0000002000 r--p 00000000 00:01 1030   /memfd:OTEL_CTX (deleted)\n", "/memfd:OTEL_CTX (deleted)"},
		{"no larger than its header", "7f0000001000-7f0000001020 rw-p 00000000 00:00 0   [anon:OTEL_CTX]\n", "[anon:OTEL_CTX]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(payload)
			f.setMaps(otherMapping + tt.mapping + otherMapping)
			pc, err := f.read()
			require.NoError(t, err)
			assert.Equal(t, tt.wantName, pc.MappingName)
			assert.Equal(t, uint64(headerAt), pc.MappingAddress)
			assert.Equal(t, uint32(2), pc.Version)
			assert.Equal(t, uint64(1000), pc.PublishedAtNS)
			assert.Equal(t, len(payload), pc.PayloadSize)
			assert.True(t, proto.Equal(msg, pc.Message))
			assert.Equal(t, "https://opentelemetry.io/schemas/1.40.0", pc.SchemaURL())
		})
	}

	t.Run("payload in the header's mapping", func(t *testing.T) {
		f := newFake(nil)
		copy(f.memory[headerAt][wire.ProcessContextHeaderSize:], payload)
		h := f.header(headerAt)
		h.Payload, h.PayloadSize = headerAt+wire.ProcessContextHeaderSize, uint32(len(payload))
		pc, err := f.read()
		require.NoError(t, err)
		assert.True(t, proto.Equal(msg, pc.Message))
	})
	t.Run("largest payload", func(t *testing.T) {
		msg := message("")
		value := msg.GetResource().GetAttributes()[0].GetValue()
		for i := 65_200; len(marshal(t, msg)) < wire.MaxProcessContextPayload; i++ {
			value.Value = str(strings.Repeat("n", i)).GetValue()
		}
		payload := marshal(t, msg)
		require.Len(t, payload, wire.MaxProcessContextPayload)
		pc, err := newFake(payload).read()
		require.NoError(t, err)
		assert.True(t, proto.Equal(msg, pc.Message))
	})
	t.Run("smallest payload", func(t *testing.T) {
		// An unknown field of one byte cannot be; two are a resource without anything.
		pc, err := newFake([]byte{0x0a, 0}).read()
		require.NoError(t, err)
		assert.Empty(t, pc.Message.GetResource().GetAttributes())
		assert.Empty(t, pc.SchemaURL())
	})
	t.Run("a copy", func(t *testing.T) {
		f := newFake(payload)
		pc, err := f.read()
		require.NoError(t, err)
		clear(f.memory[payloadAt])
		clear(f.memory[headerAt])
		assert.True(t, proto.Equal(msg, pc.Message))
	})
	t.Run("golden payload", func(t *testing.T) {
		payload := goldenPayload(t)
		pc, err := newFake(payload).read()
		require.NoError(t, err)
		assert.Equal(t, "checkout", serviceName(pc))
		assert.Len(t, pc.Message.GetResource().GetAttributes(), 19)
		assert.Len(t, pc.Message.GetAttributes(), 2)
		assert.Equal(t, payload, marshal(t, pc.Message))
	})
	t.Run("duplicate keys are kept", func(t *testing.T) {
		msg := message("one")
		msg.Resource.Attributes = append(msg.GetResource().GetAttributes(), keyValue("service.name", str("two")))
		pc, err := newFake(marshal(t, msg)).read()
		require.NoError(t, err)
		assert.True(t, proto.Equal(msg, pc.Message))
	})
	t.Run("unknown fields are no error", func(t *testing.T) {
		_, err := newFake(append(bytes.Clone(payload), lengthDelimited(99, []byte("later"))...)).read()
		require.NoError(t, err)
	})
}

// goldenPayload reads the golden file that internal/wire keeps as a hex dump.
func goldenPayload(t testing.TB) []byte {
	t.Helper()
	dump, err := os.ReadFile(filepath.Join("..", "internal", "wire", "testdata", "processcontext_payload.hex"))
	require.NoError(t, err)
	var payload []byte
	for line := range strings.Lines(string(dump)) {
		const offset = 10
		digits, _, _ := strings.Cut(line[offset:], "|")
		b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
		require.NoError(t, err)
		payload = append(payload, b...)
	}
	return payload
}

// Reading costs what the documentation of Process says, and no look at the maps
// once the context has been found.
func TestProcessContextCost(t *testing.T) {
	f := newFake(marshal(t, message("x")))
	p := f.process()
	_, err := p.ProcessContext(context.Background())
	require.NoError(t, err)
	assert.Equal(t, 1, f.mapsReads)

	f.reads, f.mapsReads, f.aliveChecks = 0, 0, 0
	_, err = p.ProcessContext(context.Background())
	require.NoError(t, err)
	assert.Equal(t, 4, f.reads+f.aliveChecks+f.mapsReads)
	assert.Equal(t, 1, f.aliveChecks)
	assert.Zero(t, f.mapsReads)
}

func TestProcessContextNone(t *testing.T) {
	for name, maps := range map[string]string{
		"no mappings":      "",
		"other mappings":   otherMapping + otherMapping,
		"similar names":    strings.ReplaceAll(usualMapping, "OTEL_CTX", "DD_OTEL_CTX") + strings.ReplaceAll(usualMapping, "/memfd", "/x/memfd"),
		"not readable":     strings.ReplaceAll(usualMapping, "rw-p", "-w-p"),
		"no access":        strings.ReplaceAll(usualMapping, "rw-p", "---p"),
		"executable":       strings.ReplaceAll(usualMapping, "rw-p", "rwxp"),
		"smaller than one": strings.ReplaceAll(usualMapping, "7f0000023000", "7f000000101f"),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(marshal(t, message("x")))
			f.setMaps(maps)
			_, err := f.read()
			assertKind(t, ErrNoContext, err, fakePID)
			assert.Zero(t, f.reads, "memory that is none of ours")
			assert.Equal(t, 1, f.mapsReads, "tried again")
		})
	}
}

func TestProcessContextBadHeader(t *testing.T) {
	tests := []struct {
		name    string
		change  func(h *wire.ProcessContextHeader)
		want    error
		wantErr string
	}{
		{"wrong signature", func(h *wire.ProcessContextHeader) { h.Signature = [8]byte([]byte("OTEL_CTY")) }, ErrInvalid, `signature "OTEL_CTY"`},
		{"no signature yet", func(h *wire.ProcessContextHeader) { h.Signature = [8]byte{} }, ErrBusy, "being updated"},
		{"version 3", func(h *wire.ProcessContextHeader) { h.Version = 3 }, ErrInvalid, "version 3"},
		{"no time", func(h *wire.ProcessContextHeader) { h.PublishedAtNS = 0 }, ErrBusy, "being updated"},
		{"no payload", func(h *wire.ProcessContextHeader) { h.PayloadSize = 0 }, ErrInvalid, "payload of 0 bytes"},
		{"payload too large", func(h *wire.ProcessContextHeader) { h.PayloadSize = 65537 }, ErrInvalid, "payload of 65537 bytes"},
		{"more than there is", func(h *wire.ProcessContextHeader) { h.PayloadSize = 60000 }, ErrInvalid, "fake read of 60000 bytes"},
		{"payload cut short", func(h *wire.ProcessContextHeader) { h.PayloadSize-- }, ErrInvalid, "payload: "},
		{"wild payload", func(h *wire.ProcessContextHeader) { h.Payload = 0xdeadbeef000 }, ErrInvalid, "at 0xdeadbeef000"},
		{"payload behind its buffer", func(h *wire.ProcessContextHeader) { h.Payload++ }, ErrInvalid, "at 0xc000123457"},
		{"payload is the header", func(h *wire.ProcessContextHeader) { h.Payload = headerAt }, ErrInvalid, "payload: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(marshal(t, message("x")))
			tt.change(f.header(headerAt))
			var (
				pc  *ProcessContext
				err error
			)
			bytes := allocated(func() { pc, err = f.read() })
			assertKind(t, tt.want, err, fakePID)
			require.ErrorContains(t, err, tt.wantErr)
			assert.Nil(t, pc)
			assert.LessOrEqual(t, f.reads, 4*maxAttempts)
			assert.Less(t, bytes, uint64(1<<20))
			if tt.want == ErrInvalid { //nolint:errorlint // the table has the sentinels themselves
				assert.LessOrEqual(t, f.reads, 4, "tried what cannot get better")
			}
		})
	}
}

// nested is a value inside of depth arrays or maps.
func nested(depth int, leaf *commonpb.AnyValue, asMap bool) *commonpb.AnyValue {
	for range depth {
		if asMap {
			leaf = &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{
				KvlistValue: &commonpb.KeyValueList{Values: []*commonpb.KeyValue{{Key: "k", Value: leaf}}},
			}}
		} else {
			leaf = &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{
				ArrayValue: &commonpb.ArrayValue{Values: []*commonpb.AnyValue{leaf}},
			}}
		}
	}
	return leaf
}

// nestedPayload is a payload with a value inside of depth arrays or maps, or of as
// many as a payload has room for. By hand and from its end, as it is more than a
// marshaller need put up with.
func nestedPayload(depth int, asMap bool) (payload []byte, levels int) {
	b := make([]byte, wire.MaxProcessContextPayload)
	at := len(b)
	wrap := func(fields ...int) {
		for _, field := range fields {
			tag := binary.AppendUvarint(nil, uint64(field<<3|2))
			tag = binary.AppendUvarint(tag, uint64(len(b)-at))
			at -= len(tag)
			copy(b[at:], tag)
		}
	}
	const most = 32 // more than what one level and the attribute around all take
	for ; levels < depth && at > most; levels++ {
		if asMap {
			wrap(2, 1, 6) // the value of an entry of a map
		} else {
			wrap(1, 5) // an element of an array
		}
	}
	wrap(2, 2) // the value of an attribute
	return b[at:], levels
}

func TestProcessContextNesting(t *testing.T) {
	leaves := map[string]*commonpb.AnyValue{
		"string":  str("leaf"),
		"nothing": {},
		// Publishers count the values that values are inside of. Lists of plain
		// values, and empty ones, may be the innermost.
		"list":       nested(1, str("leaf"), false),
		"empty list": {Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{}}},
		"empty map":  {Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{}}},
	}
	for _, asMap := range []bool{true, false} {
		for name, leaf := range leaves {
			t.Run(fmt.Sprintf("maps=%t/leaf=%s", asMap, name), func(t *testing.T) {
				value := nested(wire.MaxValueNesting, leaf, asMap)
				msg := message("x")
				msg.Resource.Attributes = append(msg.GetResource().GetAttributes(), keyValue("deep", value))
				msg.Attributes = append(msg.GetAttributes(), keyValue("deep", value))
				pc, err := newFake(marshal(t, msg)).read()
				require.NoError(t, err)
				assert.True(t, proto.Equal(msg, pc.Message))
			})
		}
	}
	for _, asMap := range []bool{true, false} {
		for _, depth := range []int{2 * wire.MaxValueNesting, 500, 1000, math.MaxInt} {
			t.Run(fmt.Sprintf("maps=%t/depth=%d", asMap, depth), func(t *testing.T) {
				payload, got := nestedPayload(depth, asMap)
				if depth == math.MaxInt {
					t.Logf("%d levels in %d bytes", got, len(payload))
					require.Greater(t, got, 4000)
				}
				_, err := newFake(payload).read()
				assertKind(t, ErrInvalid, err, fakePID)
				assert.ErrorContains(t, err, "recursion")
			})
		}
	}
	t.Run("groups", func(t *testing.T) {
		// The only thing in protobuf that nests without saying how long it is:
		// start of group 15, and never an end.
		_, err := newFake(bytes.Repeat([]byte{15<<3 | 3}, wire.MaxProcessContextPayload)).read()
		assertKind(t, ErrInvalid, err, fakePID)
		balanced := func(n int) []byte {
			return append(bytes.Repeat([]byte{15<<3 | 3}, n), bytes.Repeat([]byte{15<<3 | 4}, n)...)
		}
		_, err = newFake(balanced(30_000)).read()
		assertKind(t, ErrInvalid, err, fakePID)
		_, err = newFake(append(balanced(100), marshal(t, message("x"))...)).read()
		require.NoError(t, err, "an unknown field, however it is made")
	})
}

func TestProcessContextBadPayload(t *testing.T) {
	tests := map[string][]byte{
		"text":                       []byte("service.name=checkout"),
		"zeros":                      make([]byte, 100),
		"all bits":                   bytes.Repeat([]byte{0xff}, 65536),
		"one byte":                   {0x0a},
		"length beyond the end":      {0x0a, 0x7f, 0},
		"length of 2^63":             {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"varint without an end":      bytes.Repeat([]byte{0x80}, 65536),
		"resource of a wrong type":   lengthDelimited(1, lengthDelimited(1, []byte{0xff})),
		"key is not UTF-8":           lengthDelimited(2, lengthDelimited(1, []byte("\xff\xfe"))),
		"value is not UTF-8":         lengthDelimited(2, lengthDelimited(2, lengthDelimited(1, []byte("caf\xe9")))),
		"resource key is not UTF-8":  lengthDelimited(1, lengthDelimited(1, lengthDelimited(1, []byte{0xc0, 0x80}))),
		"surrogate in a value":       lengthDelimited(2, lengthDelimited(2, lengthDelimited(1, []byte{0xed, 0xa0, 0x80}))),
		"reserved wire type":         {0x0f, 0, 0, 0},
		"field number 0":             {0x02, 0},
		"end of a group not started": {0x0c},
	}
	for name, payload := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(payload)
			pc, err := f.read()
			assertKind(t, ErrInvalid, err, fakePID)
			require.ErrorContains(t, err, "payload: ")
			assert.Nil(t, pc)
			assert.Equal(t, 4, f.reads, "tried what cannot get better")
		})
	}
}

// Two bytes on the wire are a whole message in memory: 64 KiB of them must not be
// more than a few MiB.
func TestProcessContextGiantRepeatedFields(t *testing.T) {
	emptyList := func(list int) []byte {
		return lengthDelimited(2, lengthDelimited(2, lengthDelimited(list, bytes.Repeat([]byte{0x0a, 0}, 32000))))
	}
	for name, payload := range map[string][]byte{
		"attributes":          bytes.Repeat([]byte{0x12, 0}, 32768),
		"resources":           bytes.Repeat([]byte{0x0a, 0}, 32768),
		"resource attributes": lengthDelimited(1, bytes.Repeat([]byte{0x0a, 0}, 32760)),
		"array":               emptyList(5),
		"map":                 emptyList(6),
		"entity references":   lengthDelimited(1, bytes.Repeat([]byte{0x1a, 0}, 32760)),
		"unknown fields":      bytes.Repeat([]byte{0x78, 0}, 32768),
	} {
		t.Run(name, func(t *testing.T) {
			require.LessOrEqual(t, len(payload), wire.MaxProcessContextPayload)
			f := newFake(payload)
			var err error
			bytes := allocated(func() { _, err = f.read() })
			require.NoError(t, err)
			assert.Less(t, bytes, uint64(16<<20))
		})
	}
}

func TestProcessContextSeveralMappings(t *testing.T) {
	const otherAt = 0x7f00_1000_0000
	second := func(name string) string {
		return "7f0010000000-7f0010001000 rw-p 00000000 00:00 0          " + name + "\n"
	}
	other := func(change func(h *wire.ProcessContextHeader)) *fakeTarget {
		f := newFake(marshal(t, message("first")))
		payload := marshal(t, message("second"))
		const at = 0xc0_1000_0000
		f.memory[otherAt] = encodeHeader(2000, len(payload), at)
		f.memory[at] = payload
		f.setMaps(usualMapping + second("[anon:OTEL_CTX]"))
		if change != nil {
			change(f.header(otherAt))
		}
		return f
	}
	t.Run("both valid", func(t *testing.T) {
		_, err := other(nil).read()
		assertKind(t, ErrInvalid, err, fakePID)
		assert.ErrorContains(t, err, "2 of them")
	})
	for name, change := range map[string]func(h *wire.ProcessContextHeader){
		"no time":  func(h *wire.ProcessContextHeader) { h.PublishedAtNS = 0 },
		"unsigned": func(h *wire.ProcessContextHeader) { h.Signature = [8]byte{} },
		"not a header": func(h *wire.ProcessContextHeader) {
			h.Signature = [8]byte([]byte("\x7fELF\x02\x01\x01\x00"))
		},
		"version 1": func(h *wire.ProcessContextHeader) { h.Version = 1 },
	} {
		t.Run("valid and "+name, func(t *testing.T) {
			f := other(change)
			pc, err := f.read()
			require.NoError(t, err)
			assert.Equal(t, "first", serviceName(pc))

			f = other(nil)
			change(f.header(headerAt))
			pc, err = f.read()
			require.NoError(t, err)
			assert.Equal(t, "second", serviceName(pc))
		})
	}
	for name, tt := range map[string]struct {
		change func(f *fakeTarget)
		want   string
	}{
		"something else by the time it is looked at": {func(f *fakeTarget) {
			f.setMaps(usualMapping)
			f.beforeRead = func(n int) {
				if n == 1 {
					// Withdrawn, its address taken by others, and published again elsewhere.
					f.header(headerAt).Signature = [8]byte([]byte("\x7fELF\x02\x01\x01\x00"))
					f.setMaps(second("[anon:OTEL_CTX]"))
				}
			}
		}, "second"},
		"one behind the other while both are looked at": {func(f *fakeTarget) {
			f.beforeRead = func(n int) {
				if n == 2 {
					delete(f.memory, headerAt)
					f.setMaps(second("[anon:OTEL_CTX]"))
				}
			}
		}, "second"},
		"valid and unmapped": {func(f *fakeTarget) { delete(f.memory, otherAt) }, "first"},
		"valid and executable": {func(f *fakeTarget) {
			f.setMaps(usualMapping + strings.ReplaceAll(second("[anon:OTEL_CTX]"), "rw-p", "r-xp"))
		}, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			f := other(nil)
			tt.change(f)
			pc, err := f.read()
			require.NoError(t, err)
			assert.Equal(t, tt.want, serviceName(pc))
		})
	}
	t.Run("neither valid", func(t *testing.T) {
		f := other(func(h *wire.ProcessContextHeader) { h.Version = 1 })
		f.header(headerAt).Version = 3
		_, err := f.read()
		assertKind(t, ErrInvalid, err, fakePID)
		require.ErrorContains(t, err, "version 1")
		assert.ErrorContains(t, err, "version 3")
	})
	t.Run("one invalid, one on its way", func(t *testing.T) {
		f := other(func(h *wire.ProcessContextHeader) { h.Version = 1 })
		f.header(headerAt).PublishedAtNS = 0
		_, err := f.read()
		assertKind(t, ErrBusy, err, fakePID)
	})
	t.Run("more than anyone needs", func(t *testing.T) {
		for _, n := range []int{maxCandidates, maxCandidates + 1} {
			f := newFake(marshal(t, message("first")))
			f.setMaps(usualMapping + strings.Repeat(second("[anon:OTEL_CTX]"), n-1))
			pc, err := f.read()
			if n <= maxCandidates {
				require.NoError(t, err)
				assert.Equal(t, "first", serviceName(pc))
				continue
			}
			assertKind(t, ErrInvalid, err, fakePID)
			require.ErrorContains(t, err, "more than 16 mappings")
			assert.Zero(t, f.reads)
		}
	})
	t.Run("a name that plays with terminals", func(t *testing.T) {
		f := other(func(h *wire.ProcessContextHeader) { h.Version = 1 })
		f.setMaps(second("/memfd:OTEL_CTX\x1b[2J\r (deleted)"))
		_, err := f.read()
		assertKind(t, ErrInvalid, err, fakePID)
		assert.NotContains(t, err.Error(), "\x1b")
		assert.NotContains(t, err.Error(), "\r")
	})
}

// The reads of a first ProcessContext: the candidate's header, the header, the
// payload, the header.
const (
	readLocate = 1 + iota
	readBefore
	readPayload
	readAfter
)

// A context that changes between two looks.
func TestProcessContextReplacedMidway(t *testing.T) {
	oldPayload, newPayload := marshal(t, message("old")), marshal(t, message("new and longer"))
	const newPayloadAt = 0xc0_2000_0000
	// publish lays the new payload down as an update does.
	publish := func(f *fakeTarget) {
		f.memory[newPayloadAt] = newPayload
		h := f.header(headerAt)
		h.Payload, h.PayloadSize, h.PublishedAtNS = newPayloadAt, uint32(len(newPayload)), 2000
	}
	withdraw := func(f *fakeTarget) {
		clear(f.memory)
		f.setMaps(otherMapping)
	}
	hide := func(f *fakeTarget) { f.memory[0], f.memory[headerAt] = f.memory[headerAt], nil }
	show := func(f *fakeTarget) { f.memory[headerAt] = f.memory[0] }
	type steps map[int]func(f *fakeTarget)
	tests := []struct {
		name string
		// before has what happens before a read, at 0 before each of them.
		before steps
		// want is the service that is read or, if it is empty, wantErr the error.
		want    string
		wantErr error
	}{
		{"not at all", nil, "old", nil},
		{"updated before the first look", steps{readBefore: publish}, "new and longer", nil},
		{"updated before the payload", steps{readPayload: publish}, "new and longer", nil},
		{"updated before the second look", steps{readAfter: publish}, "new and longer", nil},
		{"payload freed by an update", steps{readPayload: func(f *fakeTarget) {
			delete(f.memory, payloadAt)
			publish(f)
		}}, "new and longer", nil},
		{"payload half written, timestamp zeroed", steps{readPayload: func(f *fakeTarget) {
			f.header(headerAt).PublishedAtNS = 0
			copy(f.memory[payloadAt], "\xff\xff\xff\xff\xff")
		}, readAfter + 3: publish}, "new and longer", nil},
		{"payload pointer changed, not the time", steps{readAfter: func(f *fakeTarget) {
			publish(f)
			f.header(headerAt).PublishedAtNS = 1000
		}}, "new and longer", nil},
		{"withdrawn before the first look", steps{readBefore: withdraw}, "", ErrNoContext},
		{"withdrawn before the payload", steps{readPayload: withdraw}, "", ErrNoContext},
		{"withdrawn before the second look", steps{readAfter: withdraw}, "", ErrNoContext},
		{"replaced by something else", steps{readAfter: func(f *fakeTarget) {
			copy(f.memory[headerAt], "#!/bin/sh")
			f.setMaps(otherMapping)
		}}, "", ErrNoContext},
		{"becomes another version", steps{readAfter: func(f *fakeTarget) { f.header(headerAt).Version = 3 }}, "", ErrInvalid},
		{"moved", steps{readAfter: func(f *fakeTarget) {
			delete(f.memory, headerAt)
			f.memory[0x7f77_0000_0000] = encodeHeader(2000, len(newPayload), newPayloadAt)
			f.memory[newPayloadAt] = newPayload
			f.setMaps("7f7700000000-7f7700001000 rw-p 00000000 00:00 0    [anon:OTEL_CTX]\n")
		}}, "new and longer", nil},
		{"published in the middle of the search", steps{
			1: func(f *fakeTarget) { f.header(headerAt).Signature = [8]byte{} },
			3: func(f *fakeTarget) { f.header(headerAt).Signature = [8]byte([]byte(wire.ProcessContextSignature)) },
		}, "old", nil},
		{"mapped but not yet readable", steps{1: hide, 2: show}, "old", nil},
		{"updated all the time", steps{0: func(f *fakeTarget) { f.header(headerAt).PublishedAtNS++ }}, "", ErrBusy},
		{"comes and goes all the time", steps{0: func(f *fakeTarget) {
			if f.reads%2 == 0 {
				hide(f)
			} else if f.memory[headerAt] == nil {
				show(f)
			}
		}}, "", ErrBusy},
		{"gone, and its id given to a process with a context", steps{readPayload: func(f *fakeTarget) {
			f.alive = fmt.Errorf("%w: stat", procfs.ErrProcessGone)
		}}, "", ErrProcessGone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(oldPayload)
			f.beforeRead = func(n int) {
				for _, at := range []int{0, n} {
					if step := tt.before[at]; step != nil {
						step(f)
					}
				}
			}
			pc, err := f.read()
			assert.LessOrEqual(t, f.reads, 4*maxAttempts)
			assert.LessOrEqual(t, f.mapsReads, maxAttempts)
			if tt.wantErr != nil {
				assertKind(t, tt.wantErr, err, fakePID)
				assert.Nil(t, pc)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, serviceName(pc))
			if tt.want == "old" {
				assert.Equal(t, uint64(1000), pc.PublishedAtNS)
			}
		})
	}
}

func TestProcessContextBusyForAWhile(t *testing.T) {
	for _, busy := range []int{1, 5, maxAttempts - 1, maxAttempts, maxAttempts + 5} {
		t.Run(fmt.Sprintf("attempts=%d", busy), func(t *testing.T) {
			f := newFake(marshal(t, message("x")))
			p := f.process()
			_, err := p.ProcessContext(context.Background()) // found from now on
			require.NoError(t, err)

			f.reads = 0
			f.header(headerAt).PublishedAtNS = 0
			f.beforeRead = func(n int) {
				if n > busy {
					f.header(headerAt).PublishedAtNS = 3000
				}
			}
			pc, err := p.ProcessContext(context.Background())
			if busy < maxAttempts {
				require.NoError(t, err)
				assert.Equal(t, uint64(3000), pc.PublishedAtNS)
				assert.Equal(t, busy+3, f.reads)
				return
			}
			assertKind(t, ErrBusy, err, fakePID)
			assert.Equal(t, maxAttempts, f.reads)
			assert.Equal(t, 1, f.mapsReads, "searched for what has been found")

			pc, err = p.ProcessContext(context.Background())
			if busy == maxAttempts {
				require.NoError(t, err, "busy for good")
				assert.Equal(t, uint64(3000), pc.PublishedAtNS)
			}
		})
	}
}

func TestProcessContextFailures(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name  string
		maps  error
		read  error
		alive error
		want  error
	}{
		{name: "maps not permitted", maps: &os.PathError{Op: "open", Path: "maps", Err: syscall.EACCES}, want: ErrNotPermitted},
		{name: "maps gone", maps: fmt.Errorf("%w: %w", procfs.ErrProcessGone, syscall.ESRCH), want: ErrProcessGone},
		{name: "maps malformed", maps: fmt.Errorf("%w maps", procfs.ErrMalformed), want: ErrInvalid},
		{name: "maps out of memory", maps: syscall.ENOMEM, want: syscall.ENOMEM},
		{name: "memory not permitted", read: fmt.Errorf("read: %w", syscall.EPERM), want: ErrNotPermitted},
		{name: "memory gone", read: fmt.Errorf("read: %w", syscall.ESRCH), want: ErrProcessGone},
		{name: "memory otherwise", read: broken, want: broken},
		{name: "gone after all", alive: fmt.Errorf("%w: %w", procfs.ErrProcessGone, syscall.ENOENT), want: ErrProcessGone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for fail := readLocate; fail <= readAfter; fail++ {
				f := &failingTarget{fakeTarget: newFake(marshal(t, message("x"))), readErr: tt.read, failAt: fail}
				f.alive = tt.alive
				if tt.maps != nil {
					f.maps = func() io.Reader { return io.MultiReader(strings.NewReader(otherMapping), iotest.ErrReader(tt.maps)) }
				}
				pc, err := (&Process{pid: fakePID, target: f}).ProcessContext(context.Background())
				require.ErrorIs(t, err, tt.want)
				assert.Nil(t, pc)
				assert.ErrorContains(t, err, "pid 4711: ")
				assert.LessOrEqual(t, f.reads, 4)
			}
		})
	}
}

// failingTarget fails a read.
type failingTarget struct {
	*fakeTarget

	readErr error
	failAt  int
}

func (f *failingTarget) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.fakeTarget.ReadAt(p, off)
	if f.readErr != nil && f.reads == f.failAt {
		return 0, f.readErr
	}
	return n, err
}

// lines reads as a line so many times.
type lines struct {
	line       string
	left, at   int
	beforeLine func(left int)
}

func (l *lines) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && l.left > 0 {
		if l.at == 0 && l.beforeLine != nil {
			l.beforeLine(l.left)
		}
		c := copy(p[n:], l.line[l.at:])
		n += c
		if l.at += c; l.at == len(l.line) {
			l.at = 0
			l.left--
		}
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func TestProcessContextMillionsOfLines(t *testing.T) {
	const (
		many = 500_000
		line = "1000-2000 rw-p 0 0 0 \n"
	)
	for name, tt := range map[string]struct {
		maps io.Reader
		want error
	}{
		"none of them a context": {&lines{line: line, left: many}, ErrNoContext},
		"the last one a context": {io.MultiReader(&lines{line: line, left: many}, strings.NewReader(usualMapping)), nil},
		"more than a kernel has": {&lines{line: "\n", left: 1 << 30}, ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(marshal(t, message("x")))
			f.maps = func() io.Reader { return tt.maps }
			var err error
			bytes := allocated(func() { _, err = f.read() })
			assert.Less(t, bytes, uint64(1<<20))
			if tt.want != nil {
				assertKind(t, tt.want, err, fakePID)
			} else {
				require.NoError(t, err)
			}
		})
	}
	t.Run("each of them a context", func(t *testing.T) {
		f := newFake(marshal(t, message("x")))
		input := &lines{line: usualMapping, left: many}
		f.maps = func() io.Reader { return input }
		_, err := f.read()
		assertKind(t, ErrInvalid, err, fakePID)
		assert.Greater(t, input.left, many-10_000, "read on for nothing")
	})
	t.Run("cancelled midway", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		f := newFake(nil)
		input := &lines{line: line, left: many, beforeLine: func(left int) {
			if left == many-100_000 {
				cancel()
			}
		}}
		f.maps = func() io.Reader { return input }
		pc, err := f.process().ProcessContext(ctx)
		assertKind(t, context.Canceled, err, fakePID)
		assert.Nil(t, pc)
		assert.Greater(t, input.left, many-120_000, "read on for nobody")
	})
}

func TestProcessContextCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f := newFake(marshal(t, message("x")))
	_, err := f.process().ProcessContext(ctx)
	assertKind(t, context.Canceled, err, fakePID)
	assert.Zero(t, f.reads+f.mapsReads)

	ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	f.header(headerAt).PublishedAtNS = 0
	f.beforeRead = func(n int) {
		if n == 3 {
			cancel()
		}
	}
	_, err = f.process().ProcessContext(ctx)
	assertKind(t, context.Canceled, err, fakePID)
	assert.Equal(t, 3, f.reads, "tried on for nobody")

	ctx, cancel = context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	_, err = f.process().ProcessContext(ctx)
	assertKind(t, context.DeadlineExceeded, err, fakePID)
}

func TestChanged(t *testing.T) {
	// found is a process whose context has been read.
	found := func(t *testing.T) (*fakeTarget, *Process) {
		t.Helper()
		f := newFake(marshal(t, message("x")))
		p := f.process()
		pc, err := p.ProcessContext(context.Background())
		require.NoError(t, err)
		require.Equal(t, uint64(1000), pc.PublishedAtNS)
		f.reads, f.mapsReads, f.aliveChecks = 0, 0, 0
		return f, p
	}
	calls := func(f *fakeTarget) int { return f.reads + f.mapsReads + f.aliveChecks }

	t.Run("unchanged", func(t *testing.T) {
		f, p := found(t)
		for i := range 100 {
			require.False(t, changed(t, p, 1000))
			require.Equal(t, i+1, calls(f), "one system call each time")
		}
		assert.Equal(t, 100, f.reads)
	})
	t.Run("nothing read yet", func(t *testing.T) {
		f := newFake(marshal(t, message("x")))
		p := f.process()
		for _, at := range []uint64{0, 1000} {
			assert.True(t, changed(t, p, at))
		}
		assert.Zero(t, f.reads+f.mapsReads)
	})
	for name, change := range map[string]func(f *fakeTarget){
		"updated":         func(f *fakeTarget) { f.header(headerAt).PublishedAtNS = 2000 },
		"back in time":    func(f *fakeTarget) { f.header(headerAt).PublishedAtNS = 999 },
		"being updated":   func(f *fakeTarget) { f.header(headerAt).PublishedAtNS = 0 },
		"unmapped":        func(f *fakeTarget) { delete(f.memory, headerAt) },
		"cleared":         func(f *fakeTarget) { clear(f.memory[headerAt]) },
		"something else":  func(f *fakeTarget) { copy(f.memory[headerAt], "#!/bin/sh") },
		"another version": func(f *fakeTarget) { f.header(headerAt).Version = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			f, p := found(t)
			change(f)
			assert.True(t, changed(t, p, 1000))
			assert.LessOrEqual(t, calls(f), 2)
		})
	}
	t.Run("any other time", func(t *testing.T) {
		_, p := found(t)
		for _, at := range []uint64{0, 1, 999, 1001, math.MaxUint64} {
			assert.True(t, changed(t, p, at), "%d", at)
		}
	})
	t.Run("0 is no publication", func(t *testing.T) {
		// A caller who has read nothing yet may well begin with 0.
		f, p := found(t)
		f.header(headerAt).PublishedAtNS = 0
		assert.True(t, changed(t, p, 0), "what is being updated was taken for what is known")
	})
	t.Run("then read again", func(t *testing.T) {
		f, p := found(t)
		f.header(headerAt).PublishedAtNS = 2000
		pc, err := p.ProcessContext(context.Background())
		require.NoError(t, err)
		assert.False(t, changed(t, p, pc.PublishedAtNS))
	})
	t.Run("withdrawn, then read again", func(t *testing.T) {
		f, p := found(t)
		delete(f.memory, headerAt)
		f.setMaps(otherMapping)
		_, err := p.ProcessContext(context.Background())
		assertKind(t, ErrNoContext, err, fakePID)
		f.reads, f.aliveChecks = 0, 0
		assert.True(t, changed(t, p, 1000))
		assert.LessOrEqual(t, calls(f), 2)
	})
	t.Run("gone", func(t *testing.T) {
		for name, readErr := range map[string]error{"ESRCH": syscall.ESRCH, "EFAULT": syscall.EFAULT} {
			t.Run(name, func(t *testing.T) {
				fake, p := found(t)
				fake.alive = procfs.ErrProcessGone
				p.target = &failingTarget{fakeTarget: fake, readErr: readErr, failAt: 1}
				changed, err := p.Changed(1000)
				assertKind(t, ErrProcessGone, err, fakePID)
				assert.NotEqual(t, changed, errors.Is(readErr, syscall.ESRCH))
			})
		}
		f := newFake(nil)
		f.alive = procfs.ErrProcessGone
		_, err := f.process().Changed(1000)
		assertKind(t, ErrProcessGone, err, fakePID)
	})
	t.Run("not permitted", func(t *testing.T) {
		fake, p := found(t)
		p.target = &failingTarget{fakeTarget: fake, readErr: syscall.EPERM, failAt: 1}
		changed, err := p.Changed(1000)
		assertKind(t, ErrNotPermitted, err, fakePID)
		assert.False(t, changed)
	})
}

func TestProcessBasics(t *testing.T) {
	f := newFake(nil)
	p := f.process()
	assert.Equal(t, fakePID, p.PID())
	require.NoError(t, p.Close())
	assert.Equal(t, 1, f.closed)
}

func TestSchemaURL(t *testing.T) {
	for name, msg := range map[string]*processcontextpb.ProcessContext{
		"no message":    nil,
		"no attributes": {},
		"other":         {Attributes: []*commonpb.KeyValue{nil, keyValue("other", str("x"))}},
		"no value":      {Attributes: []*commonpb.KeyValue{keyValue(wire.AttributeSchemaURL, nil)}},
		"no string":     {Attributes: []*commonpb.KeyValue{keyValue(wire.AttributeSchemaURL, nested(1, str("x"), true))}},
		"in the resource": {Resource: &resourcepb.Resource{
			Attributes: []*commonpb.KeyValue{keyValue(wire.AttributeSchemaURL, str("x"))},
		}},
	} {
		assert.Empty(t, (&ProcessContext{Message: msg}).SchemaURL(), name)
	}
	twice := &processcontextpb.ProcessContext{Attributes: []*commonpb.KeyValue{
		keyValue(wire.AttributeSchemaURL, str("first")), keyValue(wire.AttributeSchemaURL, str("last")),
	}}
	assert.Equal(t, "last", (&ProcessContext{Message: twice}).SchemaURL())
}
