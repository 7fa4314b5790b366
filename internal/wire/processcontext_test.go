// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/big"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

var header = ProcessContextHeader{
	Signature:     [8]byte([]byte(ProcessContextSignature)),
	Version:       ProcessContextVersion,
	PayloadSize:   0x1234,
	PublishedAtNS: 0x0123456789abcdef,
	Payload:       0x00007fedcba98765,
}

// encodeHeader returns the bytes that a publisher's memory contains after it has stored h.
func encodeHeader(h ProcessContextHeader) []byte {
	b := make([]byte, ProcessContextHeaderSize)
	*ProcessContextHeaderIn(b) = h
	return b
}

// TestPublishStoresTimeLast checks that a reader that sees a publication time also sees the
// signature.
func TestPublishStoresTimeLast(t *testing.T) {
	h := ProcessContextHeaderIn(make([]byte, ProcessContextHeaderSize))
	signature := (*uint64)(unsafe.Pointer(&h.Signature))
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for now := uint64(1); !stop.Load(); now++ {
			h.Publish(now)
			atomic.StoreUint64(&h.PublishedAtNS, 0)
			atomic.StoreUint64(signature, 0)
		}
	}()
	// Each change of the time that the reader sees shows that the writer was running at the same
	// time, so the test counts changes.
	changes, unsigned, last := 0, 0, uint64(0)
	for end := time.Now().Add(time.Minute); changes < 20_000 && time.Now().Before(end); {
		for range 1000 {
			published := atomic.LoadUint64(&h.PublishedAtNS)
			signed := atomic.LoadUint64(signature) != 0
			if published == 0 || published != atomic.LoadUint64(&h.PublishedAtNS) {
				continue
			}
			if published != last {
				changes, last = changes+1, published
			}
			if !signed {
				unsigned++
			}
		}
	}
	stop.Store(true)
	<-done
	assert.Zero(t, unsigned, "of %d", changes)
}

func TestProcessContextHeaderGolden(t *testing.T) {
	want := golden.Hex(t, "testdata/processcontext_header.hex")
	require.Equal(t, want, encodeHeader(header))
	got, err := DecodeProcessContextHeader((*[ProcessContextHeaderSize]byte)(want))
	require.NoError(t, err)
	assert.Equal(t, header, got)
}

func TestDecodeProcessContextHeader(t *testing.T) {
	tests := []struct {
		name     string
		change   func(b []byte)
		unsigned bool
		wantErr  string
	}{
		{name: "all zeros", change: func(b []byte) { clear(b) }, unsigned: true, wantErr: "no signature yet"},
		{name: "signature not written yet", change: func(b []byte) { clear(b[:8]) }, unsigned: true, wantErr: "no signature yet"},
		{name: "lower case", change: func(b []byte) { copy(b, "otel_ctx") }, wantErr: `signature "otel_ctx"`},
		{name: "first byte missing", change: func(b []byte) { b[0] = 0 }, wantErr: `signature "\x00TEL_CTX"`},
		{name: "last byte missing", change: func(b []byte) { b[7] = 0 }, wantErr: `signature "OTEL_CT\x00"`},
		{name: "byte-swapped signature", change: func(b []byte) { copy(b, "XTC_LETO") }, wantErr: `signature "XTC_LETO"`},
		{name: "no version", change: func(b []byte) { binary.NativeEndian.PutUint32(b[8:], 0) }, wantErr: "version 0, supported is 2"},
		{name: "development version", change: func(b []byte) { binary.NativeEndian.PutUint32(b[8:], 1) }, wantErr: "version 1, supported is 2"},
		{name: "next version", change: func(b []byte) { binary.NativeEndian.PutUint32(b[8:], 3) }, wantErr: "version 3, supported is 2"},
		{name: "version in the wrong half", change: func(b []byte) { binary.NativeEndian.PutUint32(b[8:], 2<<16) }, wantErr: "version 131072"},
	}
	for _, tt := range tests {
		b := encodeHeader(header)
		tt.change(b)
		got, err := DecodeProcessContextHeader((*[ProcessContextHeaderSize]byte)(b))
		require.ErrorIs(t, err, ErrProcessContextHeader, tt.name)
		assert.Equal(t, tt.unsigned, err == ErrProcessContextUnsigned, tt.name) //nolint:errorlint // it must be the very sentinel or none
		require.ErrorContains(t, err, tt.wantErr, tt.name)
		assert.Zero(t, got, tt.name)
	}

	// A header is valid during an update too, whatever its other fields are.
	h := header
	h.PublishedAtNS, h.PayloadSize, h.Payload = 0, 0, 0
	got, err := DecodeProcessContextHeader((*[ProcessContextHeaderSize]byte)(encodeHeader(h)))
	require.NoError(t, err)
	assert.Equal(t, h, got)
}

func TestValidatePayload(t *testing.T) {
	const top = 1 << 63
	tests := []struct {
		name    string
		size    uint32
		address uint64
		wantErr string
	}{
		{name: "usual", size: 500, address: 0x7f0000001040},
		{name: "smallest", size: 1, address: 1},
		{name: "largest", size: 65536, address: 0xc000123456},
		{name: "last byte of user space", size: 1, address: top - 1},
		{name: "largest payload at the end of user space", size: 65536, address: top - 65536},

		{name: "empty", size: 0, address: 0x7f0000001040, wantErr: "payload of 0 bytes, must be 1 to 65536"},
		{name: "one too large", size: 65537, address: 0x7f0000001040, wantErr: "payload of 65537 bytes"},
		{name: "enormous", size: math.MaxUint32, address: 0x7f0000001040, wantErr: "payload of 4294967295 bytes"},
		{name: "null", size: 500, address: 0, wantErr: "payload at 0x0"},
		{name: "extends beyond user space", size: 2, address: top - 1, wantErr: "payload at 0x7fffffffffffffff"},
		{name: "kernel half", size: 1, address: top, wantErr: "payload at 0x8000000000000000"},
		{name: "kernel text", size: 500, address: 0xffffffff81000000, wantErr: "payload at 0xffffffff81000000"},
		{name: "wraps around", size: 500, address: math.MaxUint64, wantErr: "payload at 0xffffffffffffffff"},
	}
	for _, tt := range tests {
		h := header
		h.PayloadSize, h.Payload = tt.size, tt.address
		err := h.ValidatePayload()
		if tt.wantErr == "" {
			require.NoError(t, err, tt.name)
			continue
		}
		require.ErrorIs(t, err, ErrProcessContextHeader, tt.name)
		require.ErrorContains(t, err, tt.wantErr, tt.name)
	}
}

func TestIsProcessContextMapping(t *testing.T) {
	for _, name := range []string{
		"/memfd:OTEL_CTX (deleted)", "/memfd:OTEL_CTX", "[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]",
		"/memfd:OTEL_CTX_2 (deleted)", // The OTEP requires matching by prefix; the header then decides.
	} {
		assert.True(t, IsProcessContextMapping([]byte(name)), "%q", name)
	}
	for _, name := range []string{
		"", "OTEL_CTX", "[heap]",
		"/memfd:", "/memfd:OTEL_CT", "/memfd:OTEL-CTX (deleted)", "/memfd:otel_ctx (deleted)", "/memfd:DD_OTEL_CTX (deleted)",
		"/memfd:OTELCTX_SLOTS (deleted)", "/tmp/memfd:OTEL_CTX (deleted)", " /memfd:OTEL_CTX (deleted)", "memfd:OTEL_CTX (deleted)",
		"[anon:OTEL_CTX", "[anon:OTEL_CTX2]", "[anon: OTEL_CTX]", "[anon:OTELCTX_SLOTS]",
		"[anon_shmem:OTEL_CTX", "[anon_shmem:DD_OTEL_CTX]", "[anon_shmem:]",
	} {
		assert.False(t, IsProcessContextMapping([]byte(name)), "%q", name)
	}
}

func TestIsThreadLocalMapping(t *testing.T) {
	assert.Equal(t, "OTELCTX_THREADLOCAL", ThreadLocalName)
	for _, name := range []string{
		"/memfd:OTELCTX_THREADLOCAL (deleted)", "[anon_shmem:OTELCTX_THREADLOCAL]", "[anon:OTELCTX_THREADLOCAL]",
	} {
		assert.True(t, IsThreadLocalMapping([]byte(name)), "%q", name)
		assert.False(t, IsProcessContextMapping([]byte(name)), "%q", name)
	}
	for _, name := range []string{"", "/memfd:OTEL_CTX (deleted)", "[anon:OTELCTX_THREADLOCAL2]", "OTELCTX_THREADLOCAL", "[anon:OTELCTX_SLOTS]"} {
		assert.False(t, IsThreadLocalMapping([]byte(name)), "%q", name)
	}
}

func TestNoAllocations(t *testing.T) {
	ours, other := []byte("/memfd:OTEL_CTX (deleted)"), []byte("[heap]")
	b := [ProcessContextHeaderSize]byte(encodeHeader(header))
	ok := true
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		h, err := DecodeProcessContextHeader(&b)
		ok = ok && IsProcessContextMapping(ours) && !IsProcessContextMapping(other) && err == nil && h.ValidatePayload() == nil
	}))
	assert.True(t, ok)
}

func TestProcessContextPayloadGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/processcontext_payload.textproto")
	require.NoError(t, err)
	message := new(processcontextpb.ProcessContext)
	require.NoError(t, prototext.Unmarshal(text, message))
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	require.NoError(t, err)
	golden.Compare(t, "processcontext_payload.hex", hex.Dump(payload))

	got := new(processcontextpb.ProcessContext)
	require.NoError(t, proto.Unmarshal(payload, got))
	assert.True(t, proto.Equal(message, got), "%v", got)
}

func FuzzProcessContextHeader(f *testing.F) {
	seed := func(change func(h *ProcessContextHeader)) {
		h := header
		change(&h)
		f.Add(encodeHeader(h))
	}
	seed(func(*ProcessContextHeader) {})
	seed(func(h *ProcessContextHeader) { *h = ProcessContextHeader{} })
	seed(func(h *ProcessContextHeader) { h.Signature = [8]byte{} })
	seed(func(h *ProcessContextHeader) { h.Signature[7] = 0 })
	seed(func(h *ProcessContextHeader) { h.Version = 1 })
	seed(func(h *ProcessContextHeader) { h.PublishedAtNS = 0 })
	for _, size := range []uint32{0, 1, 65536, 65537, math.MaxUint32} {
		seed(func(h *ProcessContextHeader) { h.PayloadSize = size })
	}
	for _, address := range []uint64{0, 1, 1<<63 - 1, 1 << 63, math.MaxUint64} {
		seed(func(h *ProcessContextHeader) { h.Payload = address })
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		var b [ProcessContextHeaderSize]byte
		copy(b[:], input)
		h, err := DecodeProcessContextHeader(&b)

		version := make([]byte, 4)
		binary.NativeEndian.PutUint32(version, 2)
		valid := bytes.HasPrefix(b[:], []byte("OTEL_CTX")) && bytes.Equal(b[8:12], version)
		if valid != (err == nil) {
			t.Fatalf("% x: %v", b, err)
		}
		if err != nil {
			unsigned := bytes.Equal(b[:8], make([]byte, 8))
			if h != (ProcessContextHeader{}) {
				t.Fatalf("% x: an error (%v) and a header: %v", b, err, h)
			}
			assert.ErrorIs(t, err, ErrProcessContextHeader)
			assert.Equal(t, unsigned, err == ErrProcessContextUnsigned) //nolint:errorlint // it must be the very sentinel or none
			return
		}
		assert.Equal(t, b[:], encodeHeader(h))

		// Compute the expected result with integers that cannot overflow.
		size, end := big.NewInt(int64(h.PayloadSize)), new(big.Int).SetUint64(h.Payload)
		end.Add(end, size)
		valid = size.Sign() > 0 && size.Cmp(big.NewInt(65536)) <= 0 &&
			h.Payload != 0 && end.Cmp(new(big.Int).Lsh(big.NewInt(1), 63)) <= 0
		err = h.ValidatePayload()
		if valid != (err == nil) {
			t.Fatalf("%d bytes at %#x: %v", h.PayloadSize, h.Payload, err)
		}
		if err != nil {
			assert.ErrorIs(t, err, ErrProcessContextHeader)
		}
	})
}
