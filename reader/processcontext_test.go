// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/testing/golden"
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
		for _, inside := range []bool{false, true} {
			f := newFake(payload)
			f.setMaps(otherMapping + tt.mapping + otherMapping)
			if inside {
				copy(f.memory[headerAt][wire.ProcessContextHeaderSize:], payload)
				f.header(headerAt).Payload = headerAt + wire.ProcessContextHeaderSize
			}
			pc, err := f.read()
			require.NoError(t, err, tt.name)
			clear(f.memory[payloadAt]) // must not affect pc
			clear(f.memory[headerAt])
			assert.Equal(t, tt.wantName, pc.MappingName)
			assert.Equal(t, uint64(headerAt), pc.MappingAddress)
			assert.Equal(t, uint32(2), pc.Version)
			assert.Equal(t, uint64(1000), pc.PublishedAtNS)
			assert.Equal(t, payload, pc.Payload)
			assert.True(t, proto.Equal(msg, messageOf(pc)), tt.name)
			assert.Equal(t, "https://opentelemetry.io/schemas/1.40.0", pc.SchemaURL())
		}
	}
}

// TestProcessContextCost checks that reading a context that has been found before costs four system
// calls, as documented, and does not scan the mappings.
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

// nested returns leaf inside of depth nested arrays, or maps if asMap is true.
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

// nestedPayload returns a payload with depth nested arrays or maps around a value, or with as many
// as fit, and the number of levels. It encodes them by hand, from the innermost value outwards,
// because protobuf libraries may refuse to marshal such a depth.
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
	const most = 32 // more than the bytes of one level and of the enclosing attribute
	for ; levels < depth && at > most; levels++ {
		if asMap {
			wrap(2, 1, 6) // a value in an entry of a map
		} else {
			wrap(1, 5) // a value in an array
		}
	}
	wrap(2, 2) // a value in an attribute
	return b[at:], levels
}

// payloadTest is a payload to decode. wantErr is a part of the expected error, or "" if the payload
// is valid.
type payloadTest struct {
	name    string
	payload []byte
	wantErr string
}

const (
	groupStart, groupEnd = 15<<3 | 3, 15<<3 | 4

	noMessage = "payload: "
	recursion = "recursion"
)

// payloads returns valid and invalid payloads of every kind.
func payloads(t testing.TB) []payloadTest {
	t.Helper()
	// Pad a string until the message has the maximum size.
	largest := message("")
	value := largest.GetResource().GetAttributes()[0].GetValue()
	for i := 65_200; proto.Size(largest) < wire.MaxProcessContextPayload; i++ {
		value.Value = str(strings.Repeat("n", i)).GetValue()
	}
	twice := message("one")
	twice.Resource.Attributes = append(twice.GetResource().GetAttributes(), keyValue("service.name", str("two")))
	usual := marshal(t, message("checkout"))
	groups := func(n int) []byte {
		return append(bytes.Repeat([]byte{groupStart}, n), bytes.Repeat([]byte{groupEnd}, n)...)
	}
	attribute := func(kv []byte) []byte { return lengthDelimited(2, kv) }
	attributeValue := func(text []byte) []byte { return attribute(lengthDelimited(2, lengthDelimited(1, text))) }
	resource := func(fields []byte) []byte { return lengthDelimited(1, fields) }
	emptyList := func(list int) []byte {
		return attribute(lengthDelimited(2, lengthDelimited(list, bytes.Repeat([]byte{0x0a, 0}, 32000))))
	}
	all := []payloadTest{
		{"usual", usual, ""},
		{"golden", golden.Hex(t, "../internal/wire/testdata/processcontext_payload.hex"), ""},
		{"largest", marshal(t, largest), ""},
		{"smallest", []byte{0x0a, 0}, ""}, // a single byte is never valid
		{"key twice", marshal(t, twice), ""},
		{"unknown field", append(bytes.Clone(usual), lengthDelimited(99, []byte("later"))...), ""},
		{"unknown group", append(groups(100), usual...), ""},

		// In most of these payloads, every two bytes become a message in memory.
		{"attributes", bytes.Repeat([]byte{0x12, 0}, 32768), ""},
		{"resources", bytes.Repeat([]byte{0x0a, 0}, 32768), ""},
		{"resource attributes", resource(bytes.Repeat([]byte{0x0a, 0}, 32760)), ""},
		{"array", emptyList(5), ""},
		{"map", emptyList(6), ""},
		{"entity references", resource(bytes.Repeat([]byte{0x1a, 0}, 32760)), ""},
		{"unknown fields", bytes.Repeat([]byte{0x78, 0}, 32768), ""},

		{"text", []byte("service.name=checkout"), noMessage},
		{"zeros", make([]byte, 100), noMessage},
		{"all bits", bytes.Repeat([]byte{0xff}, 65536), noMessage},
		{"one byte", []byte{0x0a}, noMessage},
		{"cut short", usual[:len(usual)-1], noMessage},
		{"length beyond the end", []byte{0x0a, 0x7f, 0}, noMessage},
		{"length of 2^63", []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, noMessage},
		{"varint without an end", bytes.Repeat([]byte{0x80}, 65536), noMessage},
		{"resource of a wrong type", resource(lengthDelimited(1, []byte{0xff})), noMessage},
		{"key is not UTF-8", attribute(lengthDelimited(1, []byte("\xff\xfe"))), noMessage},
		{"value is not UTF-8", attributeValue([]byte("caf\xe9")), noMessage},
		{"resource key is not UTF-8", resource(lengthDelimited(1, lengthDelimited(1, []byte{0xc0, 0x80}))), noMessage},
		{"surrogate in a value", attributeValue([]byte{0xed, 0xa0, 0x80}), noMessage},
		{"reserved wire type", []byte{0x0f, 0, 0, 0}, noMessage},
		{"field number 0", []byte{0x02, 0}, noMessage},
		{"end of a group not started", []byte{0x0c}, noMessage},
		// Groups have no length prefix, so they allow the deepest nesting.
		{"groups without an end", bytes.Repeat([]byte{groupStart}, wire.MaxProcessContextPayload), noMessage},
		{"groups in groups", groups(30_000), noMessage},
	}
	for _, asMap := range []bool{true, false} {
		for name, leaf := range map[string]*commonpb.AnyValue{
			"string":  str("leaf"),
			"nothing": {},
			// The limit counts only the enclosing values. The innermost value may itself be an
			// empty list, or a list of plain values.
			"list":       nested(1, str("leaf"), false),
			"empty list": {Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{}}},
			"empty map":  {Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{}}},
		} {
			deep := keyValue("deep", nested(wire.MaxValueNesting, leaf, asMap))
			msg := message("x")
			msg.Resource.Attributes = append(msg.GetResource().GetAttributes(), deep)
			msg.Attributes = append(msg.GetAttributes(), deep)
			all = append(all, payloadTest{fmt.Sprintf("deep %s, maps %t", name, asMap), marshal(t, msg), ""})
		}
		for _, depth := range []int{2 * wire.MaxValueNesting, 500, 1000, math.MaxInt} {
			payload, levels := nestedPayload(depth, asMap)
			require.Greater(t, levels, min(depth-1, 4000))
			all = append(all, payloadTest{fmt.Sprintf("%d levels, maps %t", levels, asMap), payload, recursion})
		}
	}
	return all
}

func TestProcessContextPayloads(t *testing.T) {
	for _, tt := range payloads(t) {
		t.Run(tt.name, func(t *testing.T) {
			require.LessOrEqual(t, len(tt.payload), wire.MaxProcessContextPayload)
			f := newFake(tt.payload)
			var (
				pc  *ProcessContext
				err error
			)
			bytes := allocated(func() { pc, err = f.read() })
			assert.Less(t, bytes, uint64(16<<20))
			assert.Equal(t, 4, f.reads, "retried a permanent error")
			if tt.wantErr != "" {
				assertKind(t, ErrInvalid, err, fakePID)
				require.ErrorContains(t, err, noMessage)
				require.ErrorContains(t, err, tt.wantErr)
				assert.Nil(t, pc)
				return
			}
			require.NoError(t, err)
			checkDecoded(t, tt.payload, messageOf(pc), nil)
		})
	}
}

// The numbers of the reads in the first call of ProcessContext: the header when locating the
// context, the header again, the payload, and the header once more.
const (
	readLocate = 1 + iota
	readBefore
	readPayload
	readAfter
)

// readTest changes a fake process, and has the expected result of reading its context.
type readTest struct {
	name   string
	change func(f *fakeTarget)
	// want is the expected service name. If it is empty, wantErr is the expected error, and says is
	// a part of its text.
	want    string
	wantErr error
	says    string
}

// before returns a function that arranges for change to be called just before read number n of a
// fake.
func before(n int, change func(f *fakeTarget)) func(f *fakeTarget) {
	return func(f *fakeTarget) {
		next := f.beforeRead
		f.beforeRead = func(read int) {
			if next != nil {
				next(read)
			}
			if read == n {
				change(f)
			}
		}
	}
}

// changing returns a function that changes the header of a fake.
func changing(change func(h *wire.ProcessContextHeader)) func(f *fakeTarget) {
	return func(f *fakeTarget) { change(f.header(headerAt)) }
}

// mapping returns a function that replaces the mappings of a fake.
func mapping(lines string) func(f *fakeTarget) {
	return func(f *fakeTarget) { f.setMaps(lines) }
}

func testReads(t *testing.T, fake func() *fakeTarget, tests []readTest) {
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := fake()
			tt.change(f)
			var (
				pc  *ProcessContext
				err error
			)
			bytes := allocated(func() { pc, err = f.read() })
			assert.Less(t, bytes, uint64(1<<20))
			assert.LessOrEqual(t, f.reads, 4*maxAttempts)
			assert.LessOrEqual(t, f.mapsReads, maxAttempts)
			if tt.wantErr == nil {
				require.NoError(t, err)
				assert.Equal(t, tt.want, serviceName(pc))
				if tt.want == "first" {
					assert.Equal(t, uint64(1000), pc.PublishedAtNS)
				}
				return
			}
			assert.Nil(t, pc)
			assertKind(t, tt.wantErr, err, fakePID)
			require.ErrorContains(t, err, tt.says)
		})
	}
}

func encoded(service string) []byte {
	b, err := proto.Marshal(message(service))
	if err != nil {
		panic(err)
	}
	return b
}

var first, second = encoded("first"), encoded("second and longer")

func newFirst() *fakeTarget { return newFake(first) }

func TestProcessContextNone(t *testing.T) {
	for name, lines := range map[string]string{
		"no mappings":      "",
		"other mappings":   otherMapping + otherMapping,
		"similar names":    strings.ReplaceAll(usualMapping, "OTEL_CTX", "DD_OTEL_CTX") + strings.ReplaceAll(usualMapping, "/memfd", "/x/memfd"),
		"not readable":     strings.ReplaceAll(usualMapping, "rw-p", "-w-p"),
		"no access":        strings.ReplaceAll(usualMapping, "rw-p", "---p"),
		"executable":       strings.ReplaceAll(usualMapping, "rw-p", "rwxp"),
		"smaller than one": strings.ReplaceAll(usualMapping, "7f0000023000", "7f000000101f"),
	} {
		f := newFirst()
		f.setMaps(lines)
		_, err := f.read()
		assertKind(t, ErrNoContext, err, fakePID)
		assert.Zero(t, f.reads, "%s: read memory that is not a context's", name)
		assert.Equal(t, 1, f.mapsReads, "%s: retried", name)
	}
}

func TestProcessContextBadHeader(t *testing.T) {
	type header = wire.ProcessContextHeader
	tests := []readTest{
		{"wrong signature", changing(func(h *header) { h.Signature = [8]byte([]byte("OTEL_CTY")) }), "", ErrInvalid, `signature "OTEL_CTY"`},
		{"no signature yet", changing(func(h *header) { h.Signature = [8]byte{} }), "", ErrBusy, "being updated"},
		{"version 3", changing(func(h *header) { h.Version = 3 }), "", ErrInvalid, "version 3"},
		{"no time", changing(func(h *header) { h.PublishedAtNS = 0 }), "", ErrBusy, "being updated"},
		{"no payload", changing(func(h *header) { h.PayloadSize = 0 }), "", ErrInvalid, "payload of 0 bytes"},
		{"payload too large", changing(func(h *header) { h.PayloadSize = 65537 }), "", ErrInvalid, "payload of 65537 bytes"},
		{"payload beyond its mapping", changing(func(h *header) { h.PayloadSize = 60000 }), "", ErrInvalid, "fake read of 60000 bytes"},
		{"payload cut short", changing(func(h *header) { h.PayloadSize-- }), "", ErrInvalid, "payload: "},
		{"wild payload", changing(func(h *header) { h.Payload = 0xdeadbeef000 }), "", ErrInvalid, "at 0xdeadbeef000"},
		{"payload behind its buffer", changing(func(h *header) { h.Payload++ }), "", ErrInvalid, "at 0xc000123457"},
		{"payload is the header", changing(func(h *header) { h.Payload = headerAt }), "", ErrInvalid, "payload: "},
	}
	testReads(t, newFirst, tests)
	for _, tt := range tests {
		if f := newFirst(); errors.Is(tt.wantErr, ErrInvalid) {
			tt.change(f)
			_, err := f.read()
			require.Error(t, err)
			assert.LessOrEqual(t, f.reads, 4, "%s: retried a permanent error", tt.name)
		}
	}
}

func TestProcessContextSeveralMappings(t *testing.T) {
	const otherAt, otherPayloadAt = 0x7f00_1000_0000, 0xc0_1000_0000
	const otherContext = "7f0010000000-7f0010001000 rw-p 00000000 00:00 0          [anon:OTEL_CTX]\n"
	both := func() *fakeTarget {
		f := newFirst()
		f.memory[otherAt] = encodeHeader(2000, len(second), otherPayloadAt)
		f.memory[otherPayloadAt] = second
		f.setMaps(usualMapping + otherContext)
		return f
	}
	type header = wire.ProcessContextHeader
	var tests []readTest
	for name, change := range map[string]func(h *header){
		"no time":      func(h *header) { h.PublishedAtNS = 0 },
		"unsigned":     func(h *header) { h.Signature = [8]byte{} },
		"not a header": func(h *header) { h.Signature = [8]byte([]byte("\x7fELF\x02\x01\x01\x00")) },
		"version 1":    func(h *header) { h.Version = 1 },
	} {
		tests = append(tests,
			readTest{"valid and " + name, func(f *fakeTarget) { change(f.header(otherAt)) }, "first", nil, ""},
			readTest{name + " and valid", changing(change), "second and longer", nil, ""})
	}
	oldVersion := func(f *fakeTarget) { f.header(otherAt).Version = 1 }
	tests = append(tests, []readTest{
		{"both valid", func(*fakeTarget) {}, "", ErrInvalid, "2 process contexts"},
		{"valid and unmapped", func(f *fakeTarget) { delete(f.memory, otherAt) }, "first", nil, ""},
		{"valid and executable", mapping(usualMapping + strings.ReplaceAll(otherContext, "rw-p", "r-xp")), "first", nil, ""},
		{"replaced before it is read", func(f *fakeTarget) {
			f.setMaps(usualMapping)
			before(1, func(f *fakeTarget) {
				// The context is withdrawn and published again at another address. Other data is
				// now at the old address.
				f.header(headerAt).Signature = [8]byte([]byte("\x7fELF\x02\x01\x01\x00"))
				f.setMaps(otherContext)
			})(f)
		}, "second and longer", nil, ""},
		{"moved while both are examined", before(2, func(f *fakeTarget) {
			delete(f.memory, headerAt)
			f.setMaps(otherContext)
		}), "second and longer", nil, ""},
		{"neither valid", func(f *fakeTarget) {
			oldVersion(f)
			f.header(headerAt).Version = 3
		}, "", ErrInvalid, "supported is 2; \"[anon:OTEL_CTX]\": not a process context header: version 1"},
		{"one invalid, one being published", func(f *fakeTarget) {
			oldVersion(f)
			f.header(headerAt).PublishedAtNS = 0
		}, "", ErrBusy, ""},
		{"as many as are examined", mapping(usualMapping + strings.Repeat(
			strings.ReplaceAll(otherContext, "7f0010", "7f0020"), maxCandidates-1)), "first", nil, ""},
		{"more than are examined", mapping(usualMapping + strings.Repeat(otherContext, maxCandidates)), "", ErrInvalid, "more than 16 mappings"},
		{"a name with terminal control sequences", func(f *fakeTarget) {
			oldVersion(f)
			f.setMaps(strings.ReplaceAll(otherContext, "[anon:OTEL_CTX]", "/memfd:OTEL_CTX\x1b[2J\r (deleted)"))
		}, "", ErrInvalid, `OTEL_CTX\x1b[2J\r (deleted)`},
	}...)
	testReads(t, both, tests)
}

// TestProcessContextReplacedMidway checks that a reader never mixes two contexts, whatever happens
// to the context between two of its reads.
func TestProcessContextReplacedMidway(t *testing.T) {
	const newPayloadAt, newAt, hidden = 0xc0_2000_0000, 0x7f77_0000_0000, 0
	none := func(*fakeTarget) {}
	// publish updates the context to the second payload.
	publish := func(f *fakeTarget) {
		f.memory[newPayloadAt] = second
		h := f.header(headerAt)
		h.Payload, h.PayloadSize, h.PublishedAtNS = newPayloadAt, uint32(len(second)), 2000
	}
	withdraw := func(f *fakeTarget) {
		clear(f.memory)
		f.setMaps(otherMapping)
	}
	hide := func(f *fakeTarget) { f.memory[hidden], f.memory[headerAt] = f.memory[headerAt], nil }
	show := func(f *fakeTarget) { f.memory[headerAt] = f.memory[hidden] }
	unsign := changing(func(h *wire.ProcessContextHeader) { h.Signature = [8]byte{} })
	sign := changing(func(h *wire.ProcessContextHeader) { h.Signature = [8]byte([]byte(wire.ProcessContextSignature)) })
	all := func(changes ...func(f *fakeTarget)) func(f *fakeTarget) {
		return func(f *fakeTarget) {
			for _, change := range changes {
				change(f)
			}
		}
	}
	testReads(t, newFirst, []readTest{
		{"unchanged", none, "first", nil, ""},
		{"updated before the first header read", before(readBefore, publish), "second and longer", nil, ""},
		{"updated before the payload", before(readPayload, publish), "second and longer", nil, ""},
		{"updated before the second header read", before(readAfter, publish), "second and longer", nil, ""},
		{"payload freed by an update", before(readPayload, func(f *fakeTarget) {
			delete(f.memory, payloadAt)
			publish(f)
		}), "second and longer", nil, ""},
		{"payload half written, timestamp zeroed", all(before(readPayload, func(f *fakeTarget) {
			f.header(headerAt).PublishedAtNS = 0
			copy(f.memory[payloadAt], "\xff\xff\xff\xff\xff")
		}), before(readAfter+3, publish)), "second and longer", nil, ""},
		{"payload pointer changed, not the time", before(readAfter, func(f *fakeTarget) {
			publish(f)
			f.header(headerAt).PublishedAtNS = 1000
		}), "second and longer", nil, ""},
		{"withdrawn before the first header read", before(readBefore, withdraw), "", ErrNoContext, ""},
		{"withdrawn before the payload", before(readPayload, withdraw), "", ErrNoContext, ""},
		{"withdrawn before the second header read", before(readAfter, withdraw), "", ErrNoContext, ""},
		{"replaced by something else", before(readAfter, func(f *fakeTarget) {
			copy(f.memory[headerAt], "#!/bin/sh")
			f.setMaps(otherMapping)
		}), "", ErrNoContext, ""},
		{"becomes another version", before(readAfter, func(f *fakeTarget) { f.header(headerAt).Version = 3 }), "", ErrInvalid, ""},
		{"moved", before(readAfter, func(f *fakeTarget) {
			delete(f.memory, headerAt)
			f.memory[newAt], f.memory[newPayloadAt] = encodeHeader(2000, len(second), newPayloadAt), second
			f.setMaps("7f7700000000-7f7700001000 rw-p 00000000 00:00 0    [anon:OTEL_CTX]\n")
		}), "second and longer", nil, ""},
		{"published in the middle of the search", all(before(1, unsign), before(3, sign)), "first", nil, ""},
		{"mapped but not yet readable", all(before(1, hide), before(2, show)), "first", nil, ""},
		{"updated all the time", func(f *fakeTarget) {
			f.beforeRead = func(int) { f.header(headerAt).PublishedAtNS++ }
		}, "", ErrBusy, ""},
		{"comes and goes all the time", func(f *fakeTarget) {
			f.beforeRead = func(n int) {
				if n%2 == 0 {
					hide(f)
				} else if f.memory[headerAt] == nil {
					show(f)
				}
			}
		}, "", ErrBusy, ""},
		{"exited, its id reused by a process with a context", before(readPayload, func(f *fakeTarget) {
			f.alive = fmt.Errorf("%w: stat", procfs.ErrProcessGone)
		}), "", ErrProcessGone, ""},
	})
}

func TestProcessContextBusyForAWhile(t *testing.T) {
	for _, busy := range []int{1, 5, maxAttempts - 1, maxAttempts, maxAttempts + 5} {
		t.Run(fmt.Sprintf("attempts=%d", busy), func(t *testing.T) {
			f := newFirst()
			p := f.process()
			_, err := p.ProcessContext(context.Background()) // cache the location
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
			assert.Equal(t, 1, f.mapsReads, "searched again for a known mapping")

			pc, err = p.ProcessContext(context.Background())
			if busy == maxAttempts {
				require.NoError(t, err, "stayed busy")
				assert.Equal(t, uint64(3000), pc.PublishedAtNS)
			}
		})
	}
}

func TestProcessContextFailures(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct{ maps, read, alive, want error }{
		"maps not permitted":   {maps: &os.PathError{Op: "open", Path: "maps", Err: syscall.EACCES}, want: ErrNotPermitted},
		"maps gone":            {maps: fmt.Errorf("%w: %w", procfs.ErrProcessGone, syscall.ESRCH), want: ErrProcessGone},
		"maps malformed":       {maps: fmt.Errorf("%w maps", procfs.ErrMalformed), want: ErrInvalid},
		"maps out of memory":   {maps: syscall.ENOMEM, want: syscall.ENOMEM},
		"memory not permitted": {read: fmt.Errorf("read: %w", syscall.EPERM), want: ErrNotPermitted},
		"memory gone":          {read: fmt.Errorf("read: %w", syscall.ESRCH), want: ErrProcessGone},
		"memory otherwise":     {read: broken, want: broken},
		"gone at the end":      {alive: fmt.Errorf("%w: %w", procfs.ErrProcessGone, syscall.ENOENT), want: ErrProcessGone},
	} {
		for failAt := readLocate; failAt <= readAfter; failAt++ {
			f := newFirst()
			f.readErr, f.failAt, f.alive = tt.read, failAt, tt.alive
			if tt.maps != nil {
				f.maps = func() io.Reader { return io.MultiReader(strings.NewReader(otherMapping), iotest.ErrReader(tt.maps)) }
			}
			pc, err := f.read()
			require.ErrorIs(t, err, tt.want, name)
			assert.Nil(t, pc)
			require.ErrorContains(t, err, "pid 4711: ")
			assert.LessOrEqual(t, f.reads, 4, name)
		}
	}
}

// readFunc is a function that acts as an empty io.Reader. It is called for each Read.
type readFunc func()

func (f readFunc) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func TestProcessContextMillionsOfLines(t *testing.T) {
	const many = 500_000
	lines := strings.Repeat("1000-2000 rw-p 0 0 0 \n", many)
	testReads(t, newFirst, []readTest{
		{"none of them a context", mapping(lines), "", ErrNoContext, ""},
		{"the last one a context", mapping(lines + usualMapping), "first", nil, ""},
		{"more than a kernel has", mapping(strings.Repeat("\n", 1<<22+1)), "", ErrInvalid, "more than 4194304 lines"},
	})

	read := func(ctx context.Context, first io.Reader, rest string, want error) {
		f, unread := newFirst(), strings.NewReader(rest)
		f.maps = func() io.Reader { return io.MultiReader(first, unread) }
		pc, err := f.process().ProcessContext(ctx)
		assertKind(t, want, err, fakePID)
		assert.Nil(t, pc)
		assert.Greater(t, unread.Len(), len(rest)*9/10, "continued to read after the error")
	}
	read(t.Context(), strings.NewReader(""), strings.Repeat(usualMapping, many/5), ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	read(ctx, io.MultiReader(strings.NewReader(lines), readFunc(cancel)), lines, context.Canceled)
}

func TestProcessContextCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := newFirst()
	f.header(headerAt).PublishedAtNS = 0
	before(3, func(*fakeTarget) { cancel() })(f)
	_, err := f.process().ProcessContext(ctx)
	assertKind(t, context.Canceled, err, fakePID)
	assert.Equal(t, 3, f.reads, "continued to retry after cancellation")

	f.reads, f.mapsReads = 0, 0
	_, err = f.process().ProcessContext(ctx)
	assertKind(t, context.Canceled, err, fakePID)
	assert.Zero(t, f.reads+f.mapsReads)

	ctx, cancel = context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err = f.process().ProcessContext(ctx)
	assertKind(t, context.DeadlineExceeded, err, fakePID)
}

func TestChanged(t *testing.T) {
	set := func(at uint64) func(f *fakeTarget) {
		return func(f *fakeTarget) { f.header(headerAt).PublishedAtNS = at }
	}
	failing := func(read, alive error) func(f *fakeTarget) {
		return func(f *fakeTarget) { f.readErr, f.failAt, f.alive = read, 1, alive }
	}
	none := func(*fakeTarget) {}
	for name, tt := range map[string]struct {
		change  func(f *fakeTarget)
		at      uint64
		want    bool
		wantErr error
	}{
		"unchanged":                {none, 1000, false, nil},
		"another time":             {none, 999, true, nil},
		"a later time":             {none, 1001, true, nil},
		"the maximum time":         {none, math.MaxUint64, true, nil},
		"no publication":           {none, 0, true, nil},
		"no publication, and busy": {set(0), 0, true, nil}, // 0 is what callers that have read nothing pass
		"updated":                  {set(2000), 1000, true, nil},
		"updated and read":         {set(2000), 2000, false, nil},
		"back in time":             {set(999), 1000, true, nil},
		"being updated":            {set(0), 1000, true, nil},
		"unmapped":                 {func(f *fakeTarget) { delete(f.memory, headerAt) }, 1000, true, nil},
		"cleared":                  {func(f *fakeTarget) { clear(f.memory[headerAt]) }, 1000, true, nil},
		"something else":           {func(f *fakeTarget) { copy(f.memory[headerAt], "#!/bin/sh") }, 1000, true, nil},
		"another version":          {func(f *fakeTarget) { f.header(headerAt).Version = 3 }, 1000, true, nil},
		"gone":                     {failing(syscall.ESRCH, procfs.ErrProcessGone), 1000, false, ErrProcessGone},
		"gone and unmapped":        {failing(syscall.EFAULT, procfs.ErrProcessGone), 1000, true, ErrProcessGone},
		"not permitted":            {failing(syscall.EPERM, nil), 1000, false, ErrNotPermitted},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFirst()
			p := f.process()
			_, err := p.ProcessContext(t.Context())
			require.NoError(t, err)
			tt.change(f)
			f.reads, f.mapsReads, f.aliveChecks = 0, 0, 0
			changed, err := p.Changed(tt.at)
			assert.Equal(t, tt.want, changed)
			if tt.wantErr != nil {
				assertKind(t, tt.wantErr, err, fakePID)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, 1, f.reads)
			assert.Zero(t, f.mapsReads)
			if !tt.want {
				assert.Zero(t, f.aliveChecks, "more than one system call")
			}
		})
	}

	// Changed must report true, without any read, if nothing has been read yet or the context has
	// been withdrawn.
	f := newFirst()
	p := f.process()
	for range 2 {
		for _, at := range []uint64{0, 1000} {
			assert.True(t, changed(t, p, at))
		}
		assert.Zero(t, f.reads+f.mapsReads)
		f.setMaps(otherMapping)
		_, err := p.ProcessContext(t.Context())
		assertKind(t, ErrNoContext, err, fakePID)
		f.reads, f.mapsReads = 0, 0
	}
	f.alive = procfs.ErrProcessGone
	_, err := p.Changed(1000)
	assertKind(t, ErrProcessGone, err, fakePID)
}

func TestProcessBasics(t *testing.T) {
	f := newFirst()
	p := f.process()
	assert.Equal(t, fakePID, p.PID())
	require.NoError(t, p.Close())
	assert.Equal(t, 1, f.closed)
}

func TestSchemaURL(t *testing.T) {
	for name, pc := range map[string]*ProcessContext{
		"no attributes": {},
		"other":         {Attributes: []*commonpb.KeyValue{nil, keyValue("other", str("x"))}},
		"no value":      {Attributes: []*commonpb.KeyValue{keyValue(wire.AttributeSchemaURL, nil)}},
		"no string":     {Attributes: []*commonpb.KeyValue{keyValue(wire.AttributeSchemaURL, nested(1, str("x"), true))}},
		"in the resource": {Resource: &resourcepb.Resource{
			Attributes: []*commonpb.KeyValue{keyValue(wire.AttributeSchemaURL, str("x"))},
		}},
	} {
		assert.Empty(t, pc.SchemaURL(), name)
	}
	twice := &ProcessContext{Attributes: []*commonpb.KeyValue{
		keyValue(wire.AttributeSchemaURL, str("first")), keyValue(wire.AttributeSchemaURL, str("last")),
	}}
	assert.Equal(t, "last", twice.SchemaURL())
}
