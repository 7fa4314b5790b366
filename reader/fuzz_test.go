// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/otelctx/otelctx/internal/wire"
)

// inspect returns the depth to which messages are nested in m, including m itself. It fails the
// test if a string is not UTF-8.
func inspect(t *testing.T, m protoreflect.Message) int {
	t.Helper()
	deepest := 0
	visit := func(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
		switch fd.Kind() {
		case protoreflect.MessageKind, protoreflect.GroupKind:
			deepest = max(deepest, inspect(t, v.Message()))
		case protoreflect.StringKind:
			if !utf8.ValidString(v.String()) {
				t.Fatalf("%s is not valid UTF-8: %q", fd.FullName(), v.String())
			}
		default:
		}
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !fd.IsList() {
			visit(fd, v)
			return true
		}
		for i := range v.List().Len() {
			visit(fd, v.List().Get(i))
		}
		return true
	})
	return deepest + 1
}

// checkDecoded compares got and err, the result of decoding payload, with the result of the
// protobuf library.
func checkDecoded(t *testing.T, payload []byte, got *processcontextpb.ProcessContext, err error) {
	t.Helper()
	if (got == nil) == (err == nil) {
		t.Fatalf("% x: %v and %v", payload, got, err)
	}
	want := new(processcontextpb.ProcessContext)
	wantErr := proto.Unmarshal(payload, want)
	switch {
	case err == nil && wantErr != nil:
		t.Fatalf("% x: accepted, though %v", payload, wantErr)
	case err != nil && wantErr == nil:
		if depth := inspect(t, want.ProtoReflect()); depth <= maxMessageNesting {
			t.Fatalf("% x: rejected (%v), though it nests only %d deep", payload, err, depth)
		}
	case err == nil:
		if !proto.Equal(got, want) {
			t.Fatalf("% x: %v, want %v", payload, got, want)
		}
		if depth := inspect(t, got.ProtoReflect()); depth > maxMessageNesting {
			t.Fatalf("% x: accepted, though it nests %d deep", payload, depth)
		}
		again, err := proto.Marshal(got)
		require.NoError(t, err)
		once := new(processcontextpb.ProcessContext)
		require.NoError(t, proto.Unmarshal(again, once))
		if !proto.Equal(got, once) {
			t.Fatalf("% x: %v, and after a round trip %v", payload, got, once)
		}
	default:
	}
}

func FuzzPayload(f *testing.F) {
	for _, tt := range payloads(f) {
		f.Add(tt.payload)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		payload := bytes.Clone(input)
		got, err := decodePayload(payload)
		if !bytes.Equal(input, payload) {
			t.Fatal("the payload was changed")
		}
		checkDecoded(t, payload, got, err)
		if err != nil {
			require.ErrorContains(t, err, "payload: ")
			return
		}
		// The message must not share memory with the payload.
		want := proto.Clone(got)
		clear(payload)
		if !proto.Equal(want, got) {
			t.Fatalf("% x: the message shares its memory", input)
		}
	})
}

// Bits that describe the process that FuzzProcessContext reads.
const (
	layoutShared    = 1 << iota // the mapping with the header is MAP_SHARED
	layoutNamed                 // the mapping with the header is named by prctl
	layoutInside                // if the header is repointed, it points to a copy of the payload that follows the header
	layoutRepoint               // the header is set to the payload's size and address
	layoutSecond                // there is another mapping with the same header
	layoutTimed                 // before a read, the time is set to 0; before the next read, it is restored
	layoutReplaced              // before a read, the payload and the time are replaced
	layoutWithdrawn             // before a read, the context is withdrawn
)

func FuzzProcessContext(f *testing.F) {
	var seeds [][]byte
	for _, tt := range payloads(f) {
		if len(tt.payload) < 2000 {
			seeds = append(seeds, tt.payload)
		}
	}
	for _, layout := range []byte{
		0, layoutRepoint, layoutRepoint | layoutInside, layoutRepoint | layoutShared, layoutRepoint | layoutNamed,
		layoutRepoint | layoutSecond, layoutRepoint | layoutTimed, layoutRepoint | layoutReplaced, layoutRepoint | layoutWithdrawn, 0xff,
	} {
		for i, payload := range seeds {
			f.Add(encodeHeader(1000, len(payload), payloadAt)[:wire.ProcessContextHeaderSize], payload, layout, byte(i))
		}
		f.Add(encodeHeader(0, 10, payloadAt)[:wire.ProcessContextHeaderSize], seeds[0], layout, byte(1))
		f.Add(encodeHeader(1, 65537, payloadAt)[:wire.ProcessContextHeaderSize], seeds[0], layout, byte(2))
		f.Add(encodeHeader(1, 10, 1<<63)[:wire.ProcessContextHeaderSize], seeds[0], layout, byte(3))
		f.Add(make([]byte, wire.ProcessContextHeaderSize), seeds[0], layout, byte(4))
		f.Add([]byte("OTEL_CTX"), seeds[0], layout, byte(0))
	}
	for when := range byte(8) {
		for _, layout := range []byte{layoutReplaced, layoutTimed, layoutWithdrawn} {
			f.Add(encodeHeader(1000, len(seeds[0]), payloadAt)[:wire.ProcessContextHeaderSize], seeds[0], layoutRepoint|layout, when)
		}
	}
	f.Fuzz(func(t *testing.T, header, payload []byte, layout, when byte) {
		const otherAt = 0x7f00_1000_0000
		memory := make([]byte, 4096+len(payload))
		copy(memory[:wire.ProcessContextHeaderSize], header)
		copy(memory[wire.ProcessContextHeaderSize:], payload)

		outside := bytes.Clone(payload)
		fake := &fakeTarget{memory: map[uint64][]byte{headerAt: memory, payloadAt: outside}}
		h := fake.header(headerAt)
		if layout&layoutRepoint != 0 {
			h.PayloadSize, h.Payload = uint32(len(payload)), payloadAt
			if layout&layoutInside != 0 {
				h.Payload = headerAt + wire.ProcessContextHeaderSize
			}
		}
		line := usualMapping
		if layout&layoutShared != 0 {
			line = strings.ReplaceAll(line, "rw-p", "rw-s")
		}
		if layout&layoutNamed != 0 {
			line = strings.ReplaceAll(line, "/memfd:OTEL_CTX (deleted)", "[anon_shmem:OTEL_CTX]")
		}
		if layout&layoutSecond != 0 {
			line += "7f0010000000-7f0010001000 rw-p 00000000 00:00 0          [anon:OTEL_CTX]\n"
			fake.memory[otherAt] = bytes.Clone(memory)
		}
		fake.setMaps(otherMapping + line)

		// headers holds a copy of the header from each read.
		headers := [][]byte{}
		original := h.PublishedAtNS
		replacement := lengthDelimited(1, nil)
		// published holds the payloads by publication time. It is used only if the header points to
		// the payload.
		published := map[uint64][]byte{original: payload}
		fake.beforeRead = func(n int) {
			now, mapped := fake.memory[headerAt]
			if mapped {
				defer func() { headers = append(headers, bytes.Clone(now[:wire.ProcessContextHeaderSize])) }()
			}
			switch turn := int(when%8) + 1; {
			case n == turn && layout&layoutTimed != 0 && mapped:
				h.PublishedAtNS = 0
			case n == turn+1 && layout&layoutTimed != 0 && mapped:
				h.PublishedAtNS = original
			case n == turn && layout&layoutReplaced != 0 && mapped && len(payload) >= len(replacement):
				copy(outside, replacement)
				copy(memory[wire.ProcessContextHeaderSize:], replacement)
				h.PayloadSize, h.PublishedAtNS = uint32(len(replacement)), original+1
				published[original+1] = replacement
			case n == turn && layout&layoutWithdrawn != 0:
				delete(fake.memory, headerAt)
				fake.setMaps(otherMapping)
			}
		}

		pc, err := fake.read()
		if fake.reads > maxAttempts*(2+3) || fake.mapsReads > maxAttempts || fake.aliveChecks > maxAttempts {
			t.Fatalf("%d reads, %d of maps, %d checks", fake.reads, fake.mapsReads, fake.aliveChecks)
		}
		if (pc == nil) == (err == nil) {
			t.Fatalf("%v and %v", pc, err)
		}
		if err != nil {
			assertDocumented(t, err, fakePID)
			// In these layouts the header is always valid, so there may be an error only if the
			// payload is invalid.
			if layout&(layoutSecond|layoutTimed|layoutWithdrawn) == 0 && layout&layoutRepoint != 0 &&
				len(payload) <= 65536 && validHeader(memory) && original != 0 {
				checkDecoded(t, payload, nil, err)
			}
			return
		}
		if layout&layoutRepoint != 0 {
			want, ok := published[pc.PublishedAtNS]
			if !ok || string(want) != string(pc.Payload) {
				t.Fatalf("%d bytes at %d, though %v were published", len(pc.Payload), pc.PublishedAtNS, published)
			}
			checkDecoded(t, want, messageOf(pc), nil)
			return
		}

		// The header through which the context was read must be valid ...
		var read []byte
		for _, h := range headers {
			if binary.NativeEndian.Uint64(h[16:]) == pc.PublishedAtNS && int(binary.NativeEndian.Uint32(h[12:])) == len(pc.Payload) {
				read = h
			}
		}
		if layout&layoutSecond != 0 && read == nil { // the context comes from the second mapping
			read = fake.memory[otherAt][:wire.ProcessContextHeaderSize]
		}
		if !validHeader(read) {
			t.Fatalf("read through an invalid header: % x", read)
		}
		if pc.Version != 2 || pc.MappingAddress != headerAt && pc.MappingAddress != otherAt ||
			!strings.Contains(line, pc.MappingName) {
			t.Fatalf("%+v", pc)
		}
		// ... and the message must be that of the payload to which this header points.
		size, at := uint64(len(pc.Payload)), binary.NativeEndian.Uint64(read[24:])
		for start, b := range fake.memory {
			if at >= start && at-start <= uint64(len(b)) && uint64(len(b))-(at-start) >= size {
				checkDecoded(t, b[at-start:][:size], messageOf(pc), nil)
				return
			}
		}
		if layout&layoutWithdrawn == 0 {
			t.Fatalf("read %d bytes at %#x, where nothing is mapped", size, at)
		}
	})
}

// validHeader is an independent implementation of the rules for a readable header.
func validHeader(b []byte) bool {
	if len(b) < 32 {
		return false
	}
	version, size := binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])
	at, payload := binary.NativeEndian.Uint64(b[16:]), binary.NativeEndian.Uint64(b[24:])
	return string(b[:8]) == "OTEL_CTX" && version == 2 && size >= 1 && size <= 65536 &&
		at != 0 && payload != 0 && payload>>63 == 0
}
