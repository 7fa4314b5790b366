// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"os"
	"runtime"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"go.uber.org/goleak"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The recording of the tests.
const (
	frequency = 99
	duration  = 10 * time.Second
)

var start = time.Unix(1700000000, 123456789)

// Spans of the recording.
var (
	linkA = Link{TraceID: [16]byte{0x0a, 15: 1}, SpanID: [8]byte{0x0b, 7: 2}}
	linkB = Link{TraceID: [16]byte{0x0a, 15: 1}, SpanID: [8]byte{0x12, 0x34, 0x56, 0x78, 0x90, 0xab, 0xcd, 0xef}} // pprof's tool parses it as a number with a unit
)

// stacks returns stacks of this test process with functions of the standard library, inlined calls and one
// unknown address.
func stacks(t testing.TB) [][]*symbols.Location {
	t.Helper()
	files := symbols.NewFiles()
	defer files.Close()
	process, err := files.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { require.NoError(t, process.Close()) }()
	locate := func(address uint64) *symbols.Location {
		region := process.Find(address)
		if region == nil {
			return &symbols.Location{Address: address}
		}
		region.Attach()
		return region.Locate(address)
	}
	var found [][]*symbols.Location
	record := func() { // the whole stack of this goroutine
		pcs := make([]uintptr, 32)
		var stack []*symbols.Location
		for _, pc := range pcs[:runtime.Callers(1, pcs)] {
			stack = append(stack, locate(uint64(pc)-1))
		}
		found = append(found, stack)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		record()
		values := []int{2, 1}
		sort.Slice(values, func(i, j int) bool { record(); return values[i] < values[j] })
	}()
	<-done
	kernel, err := symbols.OpenKernel()
	if err == nil {
		found = append(found, append([]*symbols.Location{kernel.Locate(0xffffffff81000000)}, found[0]...))
	}
	return append(found, []*symbols.Location{locate(4096)})
}

func mustResource(t testing.TB, attributes ...*commonpb.KeyValue) Resource {
	t.Helper()
	r, dropped := NewResource(attributes, "https://opentelemetry.io/schemas/1.43.0")
	require.Zero(t, dropped)
	return r
}

// record returns a recording of two processes: samples with and without a span, with and without
// attributes, and several with one identity.
func record(t testing.TB) *profilespb.ProfilesData {
	t.Helper()
	b := New(Options{Start: start, Frequency: frequency, Version: "test"})
	addSamples(t, b)
	data := b.Data(start.Add(duration))
	require.NoError(t, Check(data))
	return data
}

// addSamples adds 64 samples of each of two processes.
func addSamples(t testing.TB, b *Builder) {
	t.Helper()
	shop := mustResource(t, StringAttribute("service.name", "shop"), IntAttribute("process.pid", 7))
	other := mustResource(t, StringAttribute("service.name", "other"), IntAttribute("process.pid", 8))
	all := stacks(t)
	for i := range 64 {
		s, at := Sample{Stack: all[i%len(all)]}, start.Add(time.Duration(64-i)*time.Millisecond)
		switch i % 3 {
		case 1:
			s.Link = &linkA
		case 2:
			s.Link = &linkB
		}
		if i%2 == 1 {
			s.Attributes = []*commonpb.KeyValue{IntAttribute("thread.id", int64(i%4)), StringAttribute("thread.name", "worker")}
		}
		b.Add(shop, s, at)
		b.Add(other, s, at)
	}
}
