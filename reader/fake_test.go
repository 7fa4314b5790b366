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

	// Where usual fakes have things.
	headerAt  = 0x7f00_0000_1000
	payloadAt = 0xc0_0012_3456

	usualMapping = "7f0000001000-7f0000023000 rw-p 00000000 00:01 1030                       /memfd:OTEL_CTX (deleted)\n"
	otherMapping = "55601133d000-55601135e000 rw-p 00000000 00:00 0                          [heap]\n"
)

// fakeTarget is a process as a test wants it.
type fakeTarget struct {
	// maps returns what /proc/pid/maps reads.
	maps func() io.Reader
	// memory has what is mapped by its address.
	memory map[uint64][]byte
	// beforeRead, if not nil, runs before the nth read of memory, from 1.
	beforeRead func(n int)
	// readErr, if not nil, is what the read number failAt returns.
	readErr error
	failAt  int
	// alive is what Alive returns.
	alive error

	// What has been asked.
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

// setMaps replaces what the process has mapped.
func (f *fakeTarget) setMaps(lines string) {
	f.maps = func() io.Reader { return strings.NewReader(lines) }
}

// header returns the header at an address, to be changed.
func (f *fakeTarget) header(address uint64) *wire.ProcessContextHeader {
	return wire.ProcessContextHeaderIn(f.memory[address])
}

// process is the process that reads the fake.
func (f *fakeTarget) process() *Process { return &Process{pid: fakePID, target: f} }

func (f *fakeTarget) read() (*ProcessContext, error) {
	return f.process().ProcessContext(context.Background())
}

// changed reports whether a process has changed since a publication.
func changed(t *testing.T, p *Process, publishedAt uint64) bool {
	t.Helper()
	changed, err := p.Changed(publishedAt)
	require.NoError(t, err)
	return changed
}

// encodeHeader returns the memory of a header.
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

// newFake is a process that publishes payload, the usual way.
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

// message is a process context whose service has a name.
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

// serviceName returns what a context's service is called.
func serviceName(pc *ProcessContext) string {
	for _, kv := range pc.Message.GetResource().GetAttributes() {
		if kv.GetKey() == "service.name" {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

var kinds = []error{ErrNoContext, ErrNotPermitted, ErrProcessGone, ErrInvalid, ErrBusy}

// assertKind fails unless err is of the wanted kind and of no other, and says which
// process it is about.
func assertKind(t testing.TB, want, err error, pid int) {
	t.Helper()
	require.ErrorIs(t, err, want)
	assertDocumented(t, err, pid)
}

// assertDocumented fails unless err is of exactly one kind that the package
// documents, and says which process it is about.
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

// allocated returns how many bytes f allocates, those of other goroutines included.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// lengthDelimited is a protobuf field, written by hand.
func lengthDelimited(field int, content []byte) []byte {
	b := binary.AppendUvarint(nil, uint64(field<<3|2))
	b = binary.AppendUvarint(b, uint64(len(content)))
	return append(b, content...)
}
