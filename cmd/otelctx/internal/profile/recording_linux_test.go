// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/testing/golden"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Parameters of the recording that the tests use.
const (
	frequency = 99
	duration  = 10 * time.Second
)

var start = time.Unix(1700000000, 123456789)

// Spans of the recording.
var (
	linkA = linkKey{traceID: [16]byte{0x0a, 15: 1}, spanID: [8]byte{0x0b, 7: 2}}
	linkB = linkKey{traceID: [16]byte{0x0a, 15: 1}, spanID: [8]byte{0x12, 0x34, 0x56, 0x78, 0x90, 0xab, 0xcd, 0xef}} // go tool pprof would parse this id as a number with a unit
)

// stacks returns stacks of this test process. They contain functions of the standard library, inlined
// calls and one unknown address.
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
	record := func() { // adds the whole stack of this goroutine
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
	kernel, err := symbols.OpenKernel(true)
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

// record returns a recording of two processes. It has samples with and without a span, with and without
// attributes, and several samples with the same identity.
func record(t testing.TB) *profilespb.ProfilesData {
	t.Helper()
	b := New(Options{Start: start, Frequency: frequency, Version: "test"})
	addSamples(t, b)
	data := b.Data(start.Add(duration))
	require.NoError(t, Check(data))
	return data
}

// addSamples adds 64 samples for each of two processes.
func addSamples(t testing.TB, b *Builder) {
	t.Helper()
	shop := mustResource(t, StringAttribute("service.name", "shop"), IntAttribute("process.pid", 7))
	other := mustResource(t, StringAttribute("service.name", "other"), IntAttribute("process.pid", 8))
	all := stacks(t)
	for i := range 64 {
		at := start.Add(time.Duration(64-i) * time.Millisecond)
		var link linkKey
		switch i % 3 {
		case 1:
			link = linkA
		case 2:
			link = linkB
		}
		var attributes []*commonpb.KeyValue
		if i%2 == 1 {
			attributes = []*commonpb.KeyValue{IntAttribute("thread.id", int64(i%4)), StringAttribute("thread.name", "worker")}
		}
		for _, resource := range []Resource{shop, other} {
			b.Add(resource, all[i%len(all)], link.traceID, link.spanID, attributes, at)
		}
	}
}

// fixed returns a builder with a recording that is the same on every machine.
func fixed(t testing.TB) *Builder {
	t.Helper()
	binary := &symbols.Mapping{Start: 0x401000, Limit: 0x500000, FileOffset: 0x1000, Path: "/usr/bin/shop", GoBuildID: "a/b/c/d", HTLHash: "0123456789abcdef0123456789abcdef"}
	libc := &symbols.Mapping{Start: 0x7f0000001000, Limit: 0x7f0000200000, Path: "/lib/libc.so.6", GNUBuildID: "c0ffee", GoBuildID: "x/y"}
	vmlinux := &symbols.Mapping{Start: 0xffffffff81000000, Limit: 0xffffffff82000000, Path: "[kernel.kallsyms]"}
	outer := &symbols.Location{Mapping: binary, Address: 0x401234, Type: symbols.TypeGo, Lines: []symbols.Line{
		{Function: "main.inlined", File: "main.go", Line: 12, Start: 10}, {Function: "main.main", File: "main.go", Line: 3, Start: 1},
	}}
	native := &symbols.Location{Mapping: libc, Address: 0x7f0000001500, Type: symbols.TypeNative, Lines: []symbols.Line{{Function: "qsort"}}}
	unknown := &symbols.Location{Mapping: libc, Address: 0x7f0000001600, Type: symbols.TypeNative}
	kernel := &symbols.Location{Mapping: vmlinux, Address: 0xffffffff81000010, Type: symbols.TypeKernel, Lines: []symbols.Line{{Function: "do_syscall_64"}}}
	b := New(Options{Start: start, Frequency: frequency})
	shop := mustResource(t, StringAttribute("service.name", "shop"), StringAttribute("secret", "x"), IntAttribute("process.pid", 7))
	other := mustResource(t, StringAttribute("service.name", "other"))
	thread := []*commonpb.KeyValue{IntAttribute("thread.id", 9), StringAttribute("thread.name", "worker")}
	b.Add(shop, []*symbols.Location{kernel, unknown, outer}, [16]byte{}, [8]byte{}, nil, start)
	for _, seconds := range []int{3, 1, 2, 0} {
		at := start.Add(time.Duration(seconds) * time.Second)
		b.Add(shop, []*symbols.Location{native, outer}, linkA.traceID, linkA.spanID, thread, at)
		b.Add(shop, []*symbols.Location{outer}, linkB.traceID, linkB.spanID, nil, at)
	}
	b.Add(other, []*symbols.Location{outer}, [16]byte{}, [8]byte{}, nil, start)
	return b
}

// TestGolden compares a recording with the reviewed file testdata/data.json.
func TestGolden(t *testing.T) {
	data := fixed(t).Data(start.Add(duration))
	require.NoError(t, Check(data))
	for _, p := range Each(data) {
		p.ProfileId = nil // It is random.
	}
	encoded, err := protojson.Marshal(data)
	require.NoError(t, err)
	var indented bytes.Buffer
	require.NoError(t, json.Indent(&indented, encoded, "", "  "))
	golden.Compare(t, "data.json", indented.String())
}
