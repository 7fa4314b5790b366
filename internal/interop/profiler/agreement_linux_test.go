// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/processcontext"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// attr is an attribute and the value that readers must see. The value is written by hand as protobuf
// text, because the publisher's conversion is under test.
type attr struct {
	kv   attribute.KeyValue
	want string
}

// everyType has an attribute of every type, in key order.
var everyType = []attr{
	{attribute.Bool("bool", true), `bool_value: true`},
	{attribute.BoolSlice("bools", []bool{true, false}), `array_value { values { bool_value: true } values { bool_value: false } }`},
	{attribute.ByteSlice("bytes", []byte{0, 0xff, '\n'}), `bytes_value: "\000\377\n"`},
	{attribute.KeyValue{Key: "empty"}, ``},
	{attribute.Float64("float", -0.5), `double_value: -0.5`},
	{attribute.Float64Slice("floats", []float64{1.25, 0}), `array_value { values { double_value: 1.25 } values { double_value: 0 } }`},
	{attribute.Int64("int", -1<<63), `int_value: -9223372036854775808`},
	{attribute.Int64Slice("ints", []int64{0, 1<<63 - 1}), `array_value { values { int_value: 0 } values { int_value: 9223372036854775807 } }`},
	{attribute.Map("map", attribute.Bool("b", false), attribute.Map("m", attribute.String("s", "x"))), `kvlist_value {
		values { key: "b" value { bool_value: false } }
		values { key: "m" value { kvlist_value { values { key: "s" value { string_value: "x" } } } } }
	}`},
	{attribute.String("service.name", "wörld"), `string_value: "wörld"`},
	{attribute.Slice("slice", attribute.IntValue(7), attribute.SliceValue(attribute.StringValue("deep")), attribute.Value{}), `array_value {
		values { int_value: 7 } values { array_value { values { string_value: "deep" } } } values {}
	}`},
	{attribute.StringSlice("strings", []string{"", "€"}), `array_value { values { string_value: "" } values { string_value: "€" } }`},
}

// extraAttributes are attributes of the process context outside of its resource, in key order.
var extraAttributes = []attr{
	{attribute.Int("threadlocal.count", 3), `int_value: 3`},
	{attribute.Slice("threadlocal.map", attribute.StringValue("trace"), attribute.ByteSliceValue([]byte{1, 2})), `array_value {
		values { string_value: "trace" } values { bytes_value: "\001\002" }
	}`},
	{attribute.Map("threadlocal.nested", attribute.Slice("list", attribute.MapValue(attribute.Int("at", 64)))), `kvlist_value {
		values { key: "list" value { array_value { values { kvlist_value { values { key: "at" value { int_value: 64 } } } } } } }
	}`},
}

const (
	schemaURL    = "https://opentelemetry.io/schemas/1.37.0"
	schemaURLKey = "otelctx.resource.schema_url"
)

func keyValue(key string, v *commonpb.AnyValue) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: v}
}

func integer(v int64) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v}}
}

func str(v string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}
}

// split returns the attributes to publish and the values that readers must see.
func split(attrs []attr) (kvs []attribute.KeyValue, want []*commonpb.KeyValue) {
	for _, a := range attrs {
		value := &commonpb.AnyValue{}
		if err := prototext.Unmarshal([]byte(a.want), value); err != nil {
			panic(fmt.Sprintf("%s: %v", a.kv.Key, err))
		}
		kvs = append(kvs, a.kv)
		want = append(want, keyValue(string(a.kv.Key), value))
	}
	return kvs, want
}

// sized returns attributes whose message has the given size in bytes. The message is up to 6 bytes
// smaller if longer length prefixes rule out the exact size.
func sized(size int) (kvs []attribute.KeyValue, want []*commonpb.KeyValue) {
	if size > 1000 {
		kvs, want = split(everyType)
	}
	// The key z.fill sorts after the others.
	filled := func(n int) []*commonpb.KeyValue {
		return append(slices.Clip(want), keyValue("z.fill", str(strings.Repeat("z", n))))
	}
	message := func(n int) int {
		return proto.Size(&processcontextpb.ProcessContext{Resource: &resourcepb.Resource{Attributes: filled(n)}})
	}
	n := max(size-message(0), 0)
	for n > 0 && message(n) > size {
		n--
	}
	return append(kvs, attribute.String("z.fill", strings.Repeat("z", n))), filled(n)
}

// subject is the published context of this process, and the two readers under test.
type subject struct {
	t    *testing.T
	ours *reader.Process
	// publishedAtNS is the last timestamp that both readers saw, and address is the mapping's address.
	publishedAtNS uint64
	address       libpf.Address
}

func newSubject(t *testing.T) *subject {
	t.Helper()
	return &subject{t: t, ours: open(t, os.Getpid())}
}

// shows checks that both readers notice a change, return exactly the message want, and then see no
// further change. It returns the size of the message.
func (s *subject) shows(want *processcontextpb.ProcessContext, about string) int {
	s.t.Helper()
	changed, err := s.ours.Changed(s.publishedAtNS)
	require.NoError(s.t, err)
	require.True(s.t, changed, "%s: our reader sees no change", about)

	address, memory := officialAddress(s.t, os.Getpid()), remotememory.NewProcessVirtualMemory(libpf.PID(os.Getpid()))
	if s.address != 0 {
		require.Equal(s.t, s.address, address, "the header has moved")
	}
	info, err := processcontext.Read(address, memory, s.publishedAtNS, 0)
	require.NoError(s.t, err, "%s: the official reader", about)
	require.Greater(s.t, info.PublishedAtNs, s.publishedAtNS)
	requireSame(s.t, want, info.Context, "%s: the official reader", about)
	_, err = processcontext.Read(address, memory, info.PublishedAtNs, 0)
	require.ErrorIs(s.t, err, processcontext.ErrNoUpdate, about)

	pc, err := s.ours.ProcessContext(s.t.Context())
	require.NoError(s.t, err, "%s: our reader", about)
	requireSame(s.t, want, &processcontextpb.ProcessContext{Resource: pc.Resource, Attributes: pc.Attributes}, "%s: our reader", about)
	require.Equal(s.t, info.PublishedAtNs, pc.PublishedAtNS)
	require.Equal(s.t, uint64(address), pc.MappingAddress)
	require.Equal(s.t, proto.Size(want), len(pc.Payload))
	changed, err = s.ours.Changed(pc.PublishedAtNS)
	require.NoError(s.t, err)
	require.False(s.t, changed, "%s: our reader sees a change", about)

	s.publishedAtNS, s.address = info.PublishedAtNs, address
	return len(pc.Payload)
}

// showsNothing checks that neither reader finds a context.
func (s *subject) showsNothing() {
	s.t.Helper()
	require.Empty(s.t, officialAddresses(s.t, os.Getpid()))
	_, err := s.ours.ProcessContext(s.t.Context())
	require.ErrorIs(s.t, err, reader.ErrNoContext)
	changed, err := s.ours.Changed(s.publishedAtNS)
	require.NoError(s.t, err)
	require.True(s.t, changed)
}

// publish publishes every type of attribute and a schema URL, and checks what the readers see.
func (s *subject) publish() *resourcepublisher.Publisher {
	s.t.Helper()
	kvs, want := split(everyType)
	pub, err := resourcepublisher.New(resource.NewWithAttributes(schemaURL, kvs...))
	require.NoError(s.t, err)
	s.shows(&processcontextpb.ProcessContext{
		Resource: &resourcepb.Resource{Attributes: want}, Attributes: []*commonpb.KeyValue{keyValue(schemaURLKey, str(schemaURL))},
	}, "publish")
	return pub
}

// update publishes a message of about this size in place of the last one, and checks what the readers
// see.
func (s *subject) update(pub *resourcepublisher.Publisher, size int) (message *processcontextpb.ProcessContext) {
	s.t.Helper()
	kvs, want := sized(size)
	require.NoError(s.t, pub.Update(resource.NewSchemaless(kvs...)))
	message = &processcontextpb.ProcessContext{Resource: &resourcepb.Resource{Attributes: want}}
	got := s.shows(message, fmt.Sprint("update ", size))
	require.LessOrEqual(s.t, got, size)
	require.GreaterOrEqual(s.t, got, size-6)
	return message
}

// requireSame fails unless the messages are equal. The failure shows only the beginning of each
// message, because they can have 64 KiB.
func requireSame(t *testing.T, want, got *processcontextpb.ProcessContext, format, arg string) {
	t.Helper()
	if proto.Equal(want, got) {
		return
	}
	w, g := want.String(), got.String()
	require.Failf(t, "not what was published", format+" saw %.300s (%d bytes), want %.300s (%d bytes)",
		arg, g, len(g), w, len(w))
}

// sizes returns 100 message sizes from 50 to 65,536 bytes, the readers' limit. They grow, then shrink,
// then alternate between small and large.
func sizes() []int {
	const smallest, largest, n = 50, 65535, 33
	var growing, shrinking, toAndFro []int
	for i := range n {
		growing = append(growing, smallest+i*(largest-smallest)/(n-1))
		shrinking = append(shrinking, largest+1-i*(largest+1-smallest)/(n-1))
		toAndFro = append(toAndFro, []int{smallest + 41*i, largest - 137*i}[i%2])
	}
	return slices.Concat(growing, shrinking, toAndFro, []int{largest})
}

func TestReadersAgreeOnEveryUpdate(t *testing.T) {
	s := newSubject(t)
	s.showsNothing()
	pub := s.publish()
	for _, size := range sizes() {
		s.update(pub, size)
	}
	require.NoError(t, pub.Shutdown(t.Context()))
	s.showsNothing()

	// After Shutdown, the process may publish at another address.
	s.address = 0
	pub = s.publish()
	require.NoError(t, pub.Shutdown(t.Context()))
	s.showsNothing()
}

func TestReadersAgreeOnExtraAttributes(t *testing.T) {
	s := newSubject(t)
	pub := s.publish()
	want := s.update(pub, 2000)
	without := proto.Size(want)
	change := func(about string, attributes []*commonpb.KeyValue, set []attribute.KeyValue, removed ...attribute.Key) int {
		require.NoError(t, advertise.Change(set, removed))
		want.Attributes = attributes
		return s.shows(want, about)
	}
	kvs, extra := split(extraAttributes)
	with := change("set", extra, kvs)
	assert.Greater(t, with, without)
	extra[1] = keyValue("threadlocal.map", &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{}}})
	assert.Less(t, change("replace", extra, []attribute.KeyValue{attribute.Map("threadlocal.map")}), with)
	change("remove", extra[1:], nil, "threadlocal.count", "threadlocal.none")
	assert.Equal(t, without, change("clear", nil, nil, "threadlocal.map", "threadlocal.nested"))
	require.NoError(t, pub.Shutdown(t.Context()))
}
