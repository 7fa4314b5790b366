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
	"iter"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/wire"
)

const (
	fakePID = 4711

	// The addresses of the header and the payload in the process that newFake returns.
	headerAt  = 0x7f00_0000_1000
	payloadAt = 0xc0_0012_3456

	usualMapping = "7f0000001000-7f0000023000 rw-p 00000000 00:01 1030                       /memfd:OTEL_CTX (deleted)\n"
	otherMapping = "55601133d000-55601135e000 rw-p 00000000 00:00 0                          [heap]\n"
)

// fakeTarget is a process whose mappings, memory and errors a test determines.
type fakeTarget struct {
	maps func() io.Reader
	// memory holds the contents of mapped memory, by start address.
	memory map[uint64][]byte
	// beforeRead, if not nil, is called before each read of memory. n is the number of the read,
	// from 1.
	beforeRead func(n int)
	// readErr, if not nil, is the error of read number failAt.
	readErr error
	failAt  int
	// alive is the result of Alive.
	alive error

	// The numbers of calls so far.
	reads, mapsReads, aliveChecks, closed int
}

var _ target = (*fakeTarget)(nil)

func (f *fakeTarget) ReadAt(p []byte, off int64) (int, error) {
	f.reads++
	if f.beforeRead != nil {
		f.beforeRead(f.reads)
	}
	if f.readErr != nil && f.reads == f.failAt {
		return 0, f.readErr
	}
	from, size := uint64(off), uint64(len(p))
	for start, b := range f.memory {
		if from >= start && from-start <= uint64(len(b)) && uint64(len(b))-(from-start) >= size {
			return copy(p, b[from-start:]), nil
		}
	}
	return 0, fmt.Errorf("fake read of %d bytes at %#x: %w", len(p), from, syscall.EFAULT)
}

func (f *fakeTarget) Pagemap() (*procfs.Pagemap, error) { return nil, errors.ErrUnsupported }

func (f *fakeTarget) Maps(keep func([]byte) bool) iter.Seq2[procfs.Mapping, error] {
	f.mapsReads++
	return procfs.Maps(f.maps(), keep)
}

func (f *fakeTarget) Alive() error {
	f.aliveChecks++
	return f.alive
}

func (f *fakeTarget) Close() error {
	f.closed++
	return nil
}

// setMaps sets the contents of /proc/pid/maps.
func (f *fakeTarget) setMaps(lines string) {
	f.maps = func() io.Reader { return strings.NewReader(lines) }
}

// header returns the header at this address. Tests may modify it.
func (f *fakeTarget) header(address uint64) *wire.ProcessContextHeader {
	return wire.ProcessContextHeaderIn(f.memory[address])
}

func (f *fakeTarget) process() *Process { return &Process{pid: fakePID, target: f} }

func (f *fakeTarget) read() (*ProcessContext, error) {
	return f.process().ProcessContext(context.Background())
}

func changed(t *testing.T, p *Process, publishedAt uint64) bool {
	t.Helper()
	changed, err := p.Changed(publishedAt)
	require.NoError(t, err)
	return changed
}

// encodeHeader returns a page that begins with a valid header.
func encodeHeader(publishedAt uint64, size int, payload uint64) []byte {
	b := make([]byte, 4096)
	*wire.ProcessContextHeaderIn(b) = wire.ProcessContextHeader{
		Signature:     [8]byte([]byte(wire.ProcessContextSignature)),
		Version:       wire.ProcessContextVersion,
		PayloadSize:   uint32(size),
		PublishedAtNS: publishedAt,
		Payload:       payload,
	}
	return b
}

// newFake returns a process that publishes this payload, with the header in a memfd.
func newFake(payload []byte) *fakeTarget {
	f := &fakeTarget{memory: map[uint64][]byte{
		headerAt:  encodeHeader(1000, len(payload), payloadAt),
		payloadAt: bytes.Clone(payload),
	}}
	f.setMaps(otherMapping + usualMapping + otherMapping)
	return f
}

func str(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

func keyValue(k string, v *commonpb.AnyValue) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: k, Value: v}
}

func message(service string) *processcontextpb.ProcessContext {
	return &processcontextpb.ProcessContext{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{
			keyValue("service.name", str(service)),
			keyValue("process.pid", &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: fakePID}}),
		}},
		Attributes: []*commonpb.KeyValue{
			keyValue("threadlocal.schema_version", str("otelctx_slots_v1")),
			keyValue(wire.AttributeSchemaURL, str("https://opentelemetry.io/schemas/1.40.0")),
		},
	}
}

func marshal(t testing.TB, msg proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	require.NoError(t, err)
	return b
}

// messageOf returns the message that the reader has decoded, with the fields that it does not know.
func messageOf(pc *ProcessContext) *processcontextpb.ProcessContext {
	msg := new(processcontextpb.ProcessContext)
	_ = proto.Unmarshal(pc.Payload, msg)
	msg.Resource, msg.Attributes = pc.Resource, pc.Attributes
	return msg
}

func serviceName(pc *ProcessContext) string {
	for _, kv := range pc.Resource.GetAttributes() {
		if kv.GetKey() == "service.name" {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

var kinds = []error{ErrNoContext, ErrNotPermitted, ErrProcessGone, ErrInvalid, ErrBusy}

// assertKind fails the test unless err wraps want, wraps no other documented error, and contains the
// pid.
func assertKind(t testing.TB, want, err error, pid int) {
	t.Helper()
	require.ErrorIs(t, err, want)
	assertDocumented(t, err, pid)
}

// assertDocumented fails the test unless err wraps exactly one documented error and contains the pid.
func assertDocumented(t testing.TB, err error, pid int) {
	t.Helper()
	var of []error
	for _, kind := range append(kinds, context.Canceled, context.DeadlineExceeded) {
		if errors.Is(err, kind) {
			of = append(of, kind)
		}
	}
	assert.Len(t, of, 1, "%v", err)
	assert.True(t, strings.HasPrefix(err.Error(), fmt.Sprintf("pid %d: ", pid)), "%v", err)
	assert.NotContains(t, err.Error(), "\n")
}

// allocated returns the number of bytes that all goroutines allocate during f.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// lengthDelimited encodes a protobuf field with length-delimited content.
func lengthDelimited(field int, content []byte) []byte {
	b := binary.AppendUvarint(nil, uint64(field<<3|2))
	b = binary.AppendUvarint(b, uint64(len(content)))
	return append(b, content...)
}
