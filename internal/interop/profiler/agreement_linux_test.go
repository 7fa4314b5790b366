// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
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
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// These are the commands that a child executes. After executing one, it answers with the message that
// it now publishes, in base64, or with an empty line if it publishes nothing.
const (
	cmdPublish  = "publish"  // a resource with every type of attribute and a schema URL
	cmdUpdate   = "update "  // a resource; followed by the size of the message
	cmdSet      = "set"      // the extra attributes
	cmdReplace  = "replace"  // one of the extra attributes
	cmdRemove   = "remove"   // one of the extra attributes
	cmdClear    = "clear"    // all remaining extra attributes
	cmdShutdown = "shutdown" // the publisher
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

// executeCommands is the role of a child that executes commands such as cmdPublish.
func executeCommands(parent *childproc.Parent) {
	var (
		pub  *resourcepublisher.Publisher
		want processcontextpb.ProcessContext
	)
	for {
		cmd, ok := parent.Receive()
		if !ok {
			return
		}
		var err error
		switch size, isUpdate := strings.CutPrefix(cmd, cmdUpdate); {
		case cmd == cmdPublish:
			kvs, attrs := split(everyType)
			want.Resource = &resourcepb.Resource{Attributes: attrs}
			want.Attributes = []*commonpb.KeyValue{keyValue(schemaURLKey, str(schemaURL))}
			pub, err = resourcepublisher.NewPublisher(resource.NewWithAttributes(schemaURL, kvs...))
		case isUpdate:
			n, atoiErr := strconv.Atoi(size)
			parent.Must(atoiErr)
			kvs, attrs := sized(n)
			want.Resource = &resourcepb.Resource{Attributes: attrs}
			want.Attributes = nil
			err = pub.Update(resource.NewSchemaless(kvs...))
		case cmd == cmdSet:
			var kvs []attribute.KeyValue
			kvs, want.Attributes = split(extraAttributes)
			err = advertise.Change(kvs, nil)
		case cmd == cmdReplace:
			want.Attributes[1] = keyValue("threadlocal.map", &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{}}})
			err = advertise.Change([]attribute.KeyValue{attribute.Map("threadlocal.map")}, nil)
		case cmd == cmdRemove:
			want.Attributes = want.GetAttributes()[1:]
			err = advertise.Change(nil, []attribute.Key{"threadlocal.count", "threadlocal.none"})
		case cmd == cmdClear:
			want.Attributes = nil
			err = advertise.Change(nil, []attribute.Key{"threadlocal.map", "threadlocal.nested"})
		case cmd == cmdShutdown:
			parent.Must(pub.Shutdown(context.Background()))
			parent.Send("")
			continue
		default:
			err = fmt.Errorf("unknown command %q", cmd)
		}
		parent.Must(err)
		b, err := proto.Marshal(&want)
		parent.Must(err)
		parent.Send("%s", base64.StdEncoding.EncodeToString(b))
	}
}

// subject is a child that publishes, and the two readers under test.
type subject struct {
	t      *testing.T
	child  *childproc.Child
	memory remotememory.RemoteMemory
	ours   *reader.Process
	// publishedAtNS is the last timestamp that both readers saw, and address is the mapping's address.
	publishedAtNS uint64
	address       libpf.Address
}

func newSubject(t *testing.T) *subject {
	t.Helper()
	child := start(t, roleObedient)
	return &subject{
		t:      t,
		child:  child,
		memory: remotememory.NewProcessVirtualMemory(libpf.PID(child.PID())),
		ours:   open(t, child.PID()),
	}
}

// do makes the child execute a command and returns the size of the published message. It checks that
// both readers notice the change, return exactly the published message, and then see no further
// change.
func (s *subject) do(cmd string) int {
	s.t.Helper()
	encoded, err := base64.StdEncoding.DecodeString(s.child.Ask("%s", cmd))
	require.NoError(s.t, err)
	want := new(processcontextpb.ProcessContext)
	require.NoError(s.t, proto.Unmarshal(encoded, want))

	changed, err := s.ours.Changed(s.publishedAtNS)
	require.NoError(s.t, err)
	require.True(s.t, changed, "%s: our reader sees no change", cmd)

	address := officialAddress(s.t, s.child.PID())
	if s.address != 0 {
		require.Equal(s.t, s.address, address, "the header has moved")
	}
	info, err := processcontext.Read(address, s.memory, s.publishedAtNS, 0)
	require.NoError(s.t, err, "%s: the official reader", cmd)
	require.Greater(s.t, info.PublishedAtNs, s.publishedAtNS)
	requireSame(s.t, want, info.Context, "%s: the official reader", cmd)
	_, err = processcontext.Read(address, s.memory, info.PublishedAtNs, 0)
	require.ErrorIs(s.t, err, processcontext.ErrNoUpdate, cmd)

	pc, err := s.ours.ProcessContext(s.t.Context())
	require.NoError(s.t, err, "%s: our reader", cmd)
	requireSame(s.t, want, pc.Message, "%s: our reader", cmd)
	require.Equal(s.t, info.PublishedAtNs, pc.PublishedAtNS)
	require.Equal(s.t, uint64(address), pc.MappingAddress)
	require.Equal(s.t, len(encoded), pc.PayloadSize)
	changed, err = s.ours.Changed(pc.PublishedAtNS)
	require.NoError(s.t, err)
	require.False(s.t, changed, "%s: our reader sees a change", cmd)

	s.publishedAtNS, s.address = info.PublishedAtNs, address
	return pc.PayloadSize
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
	_, err := s.ours.ProcessContext(t.Context())
	require.ErrorIs(t, err, reader.ErrNoContext)
	require.Empty(t, officialAddresses(t, s.child.PID()))

	s.do(cmdPublish)
	all := sizes()
	require.Len(t, all, 100)
	for i, size := range all {
		got := s.do(cmdUpdate + strconv.Itoa(size))
		require.LessOrEqual(t, got, size, "update %d", i)
		require.GreaterOrEqual(t, got, size-6, "update %d", i)
	}

	s.child.Ask(cmdShutdown)
	require.Empty(t, officialAddresses(t, s.child.PID()), "mappings after Shutdown")
	changed, err := s.ours.Changed(s.publishedAtNS)
	require.NoError(t, err)
	assert.True(t, changed)
	_, err = s.ours.ProcessContext(t.Context())
	require.ErrorIs(t, err, reader.ErrNoContext)

	// After Shutdown, the child may publish at another address.
	s.address = 0
	s.do(cmdPublish)
	s.child.Ask(cmdShutdown)
	require.Empty(t, officialAddresses(t, s.child.PID()), "mappings after Shutdown")
	s.child.Done()
}

func TestReadersAgreeOnExtraAttributes(t *testing.T) {
	s := newSubject(t)
	s.do(cmdPublish)
	without := s.do(cmdUpdate + "2000")
	with := s.do(cmdSet)
	assert.Greater(t, with, without)
	assert.Less(t, s.do(cmdReplace), with)
	s.do(cmdRemove)
	assert.Equal(t, without, s.do(cmdClear))
	s.child.Ask(cmdShutdown)
	s.child.Done()
}
