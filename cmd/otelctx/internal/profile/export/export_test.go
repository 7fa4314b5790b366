// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/testing/golden"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func TestMain(m *testing.M) {
	testenv.ShortenTempDir()
	goleak.VerifyTestMain(m)
}

// recording returns a recording with two samples of each of n different stacks.
func recording(t *testing.T, n int) *profilespb.ProfilesData {
	t.Helper()
	start := time.Unix(1700000000, 0)
	b := profile.New(profile.Options{Start: start, Frequency: 99})
	resource, _ := profile.NewResource([]*commonpb.KeyValue{profile.StringAttribute("service.name", "shop")}, "")
	mapping := &symbols.Mapping{Start: 0x1000, Limit: 0x100000, Path: "/bin/shop"}
	for i := range 2 * n {
		stack := []*symbols.Location{{Mapping: mapping, Address: 0x1000 + uint64(i%n), Lines: []symbols.Line{{Function: "main.main"}}}}
		b.Add(resource, stack, [16]byte{1, 15: 2}, [8]byte{3, 7: 4}, nil, start.Add(time.Duration(i)*time.Millisecond))
	}
	data := b.Data(start.Add(time.Minute))
	require.NoError(t, profile.Check(data))
	return data
}

// write writes the parts of a recording to one file.
func write(path string, format Format, parts ...*profilespb.ProfilesData) error {
	var kinds []string // of the samples in parts, CPU time before wall-clock time
	for _, p := range parts {
		for _, one := range profile.Each(p) {
			if kind := profile.KindOf(p.GetDictionary(), one); kind != profile.TypeAllocObjects && kind != profile.TypeInuseObjects {
				kinds = append(kinds, kind)
			}
		}
	}
	slices.Sort(kinds)
	f, err := Create(context.Background(), path, format, nil, slices.Compact(kinds)...)
	if err != nil {
		return err
	}
	for _, p := range parts {
		_ = f.Add(p)
	}
	return f.Close()
}

// fileOf returns the content that write writes, and checks that it leaves no temporary files.
func fileOf(t *testing.T, format Format, parts ...*profilespb.ProfilesData) []byte {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, write(filepath.Join(dir, "profile"), format, parts...))
	content, err := os.ReadFile(filepath.Join(dir, "profile"))
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	return content
}

// TestFormats checks that a file's name selects its format, and that pprof, OTLP and JSON files contain the recorded
// data, whether written at once or in two parts.
func TestFormats(t *testing.T) {
	whole, other := recording(t, 3), recording(t, 2)
	for name, format := range map[string]Format{
		"a.pb.gz": Pprof, "a.pprof": Pprof, "A.PPROF.gz": Pprof, "a.otlp": OTLP, "a.json": JSON, "a.jsonl": JSONLines,
		"a.folded": Folded, "a.html": HTML,
	} {
		got, err := FormatOf(filepath.Join("dir", name))
		require.NoError(t, err)
		assert.Equal(t, format, got, name)
	}
	for _, name := range []string{"a", "a.pb", "a.svg", "a.txt", ".gz"} {
		_, err := FormatOf(filepath.Join("dir", name))
		require.ErrorContains(t, err, ".pb.gz, .pprof, .pprof.gz, .otlp, .json, .jsonl, .folded, .html", name)
	}

	want, second := asPprof(t, whole), asPprof(t, other)
	assert.Equal(t, want.String(), parse(t, fileOf(t, Pprof, whole)).String())
	both := parse(t, fileOf(t, Pprof, whole, other))
	require.NoError(t, both.CheckValid())
	merged, err := pprof.Merge([]*pprof.Profile{want, second})
	require.NoError(t, err)
	merged.DurationNanos = both.DurationNanos // Merge adds up the durations.
	assert.Equal(t, merged.String(), sorted(t, both).String())

	decoded := &profilespb.ProfilesData{}
	require.NoError(t, proto.Unmarshal(fileOf(t, OTLP, whole), decoded))
	assert.True(t, proto.Equal(whole, decoded))
	decoded.Reset()
	require.NoError(t, proto.Unmarshal(fileOf(t, OTLP, whole, other), decoded))
	require.Len(t, decoded.GetResourceProfiles(), 2)
	// The samples of each part must still refer to the same stacks, spans and attributes.
	for i, want := range []*pprof.Profile{want, second} {
		one := &profilespb.ProfilesData{ResourceProfiles: decoded.GetResourceProfiles()[i : i+1], Dictionary: decoded.GetDictionary()}
		assert.Equal(t, sorted(t, want).String(), sorted(t, asPprof(t, one)).String())
	}

	// An entry that occurs in both parts must be in the file's dictionary only once.
	assert.True(t, proto.Equal(whole.GetDictionary(), decoded.GetDictionary()))
	for _, s := range decoded.GetResourceProfiles()[1].GetScopeProfiles()[0].GetProfiles()[0].GetSamples() {
		assert.EqualValues(t, 1, s.GetLinkIndex())
	}

	assert.Equal(t, mustJSON(t, whole), normal(t, fileOf(t, JSON, whole)))
	assert.Equal(t, mustJSON(t, decoded), normal(t, fileOf(t, JSON, whole, other)))
	lines := bytes.Split(bytes.TrimSpace(fileOf(t, JSONLines, whole, other)), []byte("\n"))
	require.Len(t, lines, 2)
	assert.Equal(t, mustJSON(t, other), normal(t, lines[1]))

	// An empty recording.
	assert.Empty(t, parse(t, fileOf(t, Pprof)).Sample)
	assert.True(t, json.Valid(fileOf(t, JSON)))
	assert.Empty(t, fileOf(t, OTLP))
	assert.Empty(t, fileOf(t, JSONLines))
}

// waited returns a recording of two goroutines that waited for 50 ms each.
func waited(t *testing.T) *profilespb.ProfilesData {
	t.Helper()
	start := time.Unix(1700000000, 0)
	b := profile.New(profile.Options{Start: start, Frequency: 20, Wall: true})
	resource, _ := profile.NewResource([]*commonpb.KeyValue{profile.StringAttribute("service.name", "shop")}, "")
	for span := range byte(2) {
		b.AddTime(resource, []*symbols.Location{{Lines: []symbols.Line{{Function: "[waiting: select]"}}}}, [16]byte{1}, [8]byte{span + 1}, nil, 50*time.Millisecond)
	}
	data := b.Data(start.Add(time.Minute))
	require.NoError(t, profile.Check(data))
	return data
}

// TestMixedTimes checks that one file can contain CPU and wall-clock time, no matter which is added first.
func TestMixedTimes(t *testing.T) {
	cpu, wall := recording(t, 3), waited(t)
	for _, parts := range [][]*profilespb.ProfilesData{{cpu, wall, cpu}, {wall, cpu, cpu}} {
		p := parse(t, fileOf(t, Pprof, parts...))
		var types []string
		for _, st := range p.SampleType {
			types = append(types, st.Type+"/"+st.Unit)
		}
		assert.Equal(t, []string{"samples/count", "cpu/nanoseconds", "wall/nanoseconds"}, types)
		assert.Equal(t, "cpu", p.DefaultSampleType)
		assert.EqualValues(t, 10101010, p.Period)
		totals := make([]int64, len(types))
		for _, s := range p.Sample {
			assert.NotEqual(t, s.Value[1] == 0, s.Value[2] == 0, "%v", s.Value)
			for i, v := range s.Value {
				totals[i] += v
			}
		}
		assert.Equal(t, []int64{12, 12 * 10101010, 100e6}, totals)

		decoded := &profilespb.ProfilesData{}
		require.NoError(t, proto.Unmarshal(fileOf(t, OTLP, parts...), decoded))
		counts := map[string]int{}
		for _, p := range profile.Each(decoded) {
			counts[profile.KindOf(decoded.GetDictionary(), p)] += len(p.GetSamples())
		}
		assert.Equal(t, map[string]int{profile.TypeCPU: 6, profile.TypeWall: 2}, counts)

		documents := documentsOf(t, fileOf(t, HTML, parts...))
		require.Len(t, documents, 2)
		for i, want := range []flameDocument{{Period: 10101010, Samples: []int64{12}}, {Period: 1, Wall: true, Samples: []int64{100e6}}} {
			total := int64(0)
			for n := 4; n < len(documents[i].Samples); n += 5 {
				total += documents[i].Samples[n]
			}
			assert.Equal(t, want, flameDocument{Period: documents[i].Period, Wall: documents[i].Wall, Samples: []int64{total}})
		}
	}
}

// asPprof converts a recording and reads the result with pprof's own package.
// TestMemory checks that each format has the bytes of allocations or in use, and the number of objects if it has room for it.
func TestMemory(t *testing.T) {
	for _, m := range []struct {
		options               profile.Options
		objects, bytes, title string
	}{
		{profile.Options{Allocations: true}, profile.TypeAllocObjects, profile.TypeAllocSpace, "allocations"},
		{profile.Options{Live: true}, profile.TypeInuseObjects, profile.TypeInuseSpace, "memory in use"},
	} {
		t.Run(m.bytes, func(t *testing.T) { testMemory(t, m.options, m.objects, m.bytes, m.title) })
	}
}

func testMemory(t *testing.T, options profile.Options, objects, space, title string) {
	t.Helper()
	start := time.Unix(1700000000, 0)
	options.Start = start
	b := profile.New(options)
	for _, service := range []string{"shop", "bank"} {
		bytes := map[string]float64{"shop": 1000.4, "bank": 70}[service]
		resource, dropped := profile.NewResource([]*commonpb.KeyValue{profile.StringAttribute("service.name", service), profile.StringAttribute("", "no key")}, "")
		require.Equal(t, 1, dropped)
		for span := range byte(2) {
			stack := []*symbols.Location{{Lines: []symbols.Line{{Function: "main.allocate"}}}}
			for range 2 { // Equal samples are one.
				b.AddAllocated(resource, stack, [16]byte{1}, [8]byte{span + 1}, nil, 3, bytes)
			}
		}
	}
	data := b.Data(start.Add(time.Minute))
	require.NoError(t, profile.Check(data))
	assert.EqualValues(t, 4, profile.Samples(data))

	p := parse(t, fileOf(t, Pprof, data))
	assert.Equal(t, []*pprof.ValueType{{Type: objects, Unit: "count"}, {Type: space, Unit: "bytes"}}, p.SampleType)
	assert.Equal(t, space, p.DefaultSampleType)
	assert.Equal(t, &pprof.ValueType{Type: "space", Unit: "bytes"}, p.PeriodType)
	var values [][]int64
	for _, s := range p.Sample {
		values = append(values, s.Value)
	}
	assert.Equal(t, [][]int64{{6, 2001}, {6, 2001}, {6, 140}, {6, 140}}, values)

	totals := map[string]int64{}
	for part, err := range profile.Split(data, proto.Size(data)/2) {
		require.NoError(t, err)
		require.NoError(t, profile.Check(part))
		for _, one := range profile.Each(part) {
			for _, s := range one.GetSamples() {
				totals[profile.KindOf(part.GetDictionary(), one)] += s.GetValues()[0]
			}
		}
	}
	assert.Equal(t, map[string]int64{objects: 24, space: 4282}, totals)

	assert.Equal(t, "bank;main.allocate 280\nshop;main.allocate 4002\n", string(fileOf(t, Folded, data)))
	documents := documentsOf(t, fileOf(t, HTML, data))
	require.Len(t, documents, 1)
	assert.Equal(t, []bool{options.Allocations, options.Live}, []bool{documents[0].Allocations, documents[0].Live})
	assert.Equal(t, "shop, bank, 2023-11-14 22:13:20 UTC, 1m0s, "+title, documents[0].Title)
	assert.EqualValues(t, 1, documents[0].Period)
}

func asPprof(t *testing.T, data *profilespb.ProfilesData) *pprof.Profile {
	t.Helper()
	p := parse(t, fileOf(t, Pprof, data))
	require.NoError(t, p.CheckValid())
	return p
}

func parse(t *testing.T, content []byte) *pprof.Profile {
	t.Helper()
	p, err := pprof.ParseData(content)
	require.NoError(t, err)
	return p
}

// sorted returns p with samples and tables in the order that pprof.Merge produces, for comparison with a merged
// profile.
func sorted(t *testing.T, p *pprof.Profile) *pprof.Profile {
	t.Helper()
	p, err := pprof.Merge([]*pprof.Profile{p})
	require.NoError(t, err)
	return p
}

func mustJSON(t *testing.T, data *profilespb.ProfilesData) any {
	t.Helper()
	return normal(t, asJSON(t, data))
}

func asJSON(t *testing.T, data proto.Message) []byte {
	t.Helper()
	var b bytes.Buffer
	w := jsonWriter{bufio.NewWriter(&b)}
	w.message(data)
	require.NoError(t, w.Flush())
	return b.Bytes()
}

func normal(t *testing.T, content []byte) (v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(content, &v))
	return v
}

// TestFileFails checks that a failure leaves an existing file unchanged, and leaves no new file behind.
func TestFileFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.pprof")
	require.NoError(t, os.WriteFile(path, []byte("before"), 0o644))
	differ := recording(t, 1)
	differ.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Period++
	both := proto.CloneOf(differ)
	both.ResourceProfiles = append(both.ResourceProfiles, recording(t, 1).GetResourceProfiles()...)
	require.Error(t, write(path, Pprof, both), "periods that differ")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "before", string(content))
	require.Error(t, write(filepath.Join(dir, "new.pprof"), Pprof, both))
	require.Error(t, write(filepath.Join(path, "no directory"), OTLP, recording(t, 1)))
	// The second name has the maximum length. The name of a temporary file next to it would be longer, so none can
	// be created.
	for _, name := range []string{"discarded", strings.Repeat("n", 255)} {
		f, err := Create(t.Context(), filepath.Join(dir, name), OTLP, nil)
		require.NoError(t, err)
		require.NoError(t, f.Discard())
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)

	require.NoError(t, write(path, Pprof, recording(t, 1)))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm(), "profiles are private to their owner")
}

// TestFileIsNotReplaced checks that profiles are written to a destination without replacing it by a new file if it
// is a symbolic link, has a second hard link, is not a regular file, or is standard output.
func TestFileIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target.json")
	for name, link := range map[string]func(string, string) error{"link": os.Symlink, "name": os.Link} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(target, []byte("before"), 0o600))
		require.NoError(t, link(target, path))
		before, err := os.Lstat(path)
		require.NoError(t, err)
		require.NoError(t, write(path, JSON, recording(t, 1)))
		after, err := os.Lstat(path)
		require.NoError(t, err)
		assert.True(t, os.SameFile(before, after))
		content, err := os.ReadFile(target)
		require.NoError(t, err)
		assert.True(t, json.Valid(content))
	}

	require.NoError(t, write(os.DevNull, OTLP, recording(t, 1)))
	info, err := os.Stat(os.DevNull)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeDevice)

	var b bytes.Buffer
	f, err := Create(t.Context(), "-", JSONLines, &b)
	require.NoError(t, err)
	require.NoError(t, f.Add(recording(t, 1)))
	require.NoError(t, f.Close())
	assert.True(t, json.Valid(b.Bytes()))
}

// TestPlanted checks that nothing is written to a link or file that another user planted in a world-writable
// directory.
func TestPlanted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("creating files of another user needs CAP_CHOWN")
	}
	const other = 65534
	dir := filepath.Join(t.TempDir(), "shared")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chmod(dir, os.ModeSticky|0o777))
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("before"), 0o600))
	path := filepath.Join(dir, "p.pprof")
	for name, plant := range map[string]func() error{
		"link":          func() error { return os.Symlink(victim, path) },
		"dangling link": func() error { return os.Symlink(filepath.Join(dir, "nothing"), path) },
		"file":          func() error { return os.WriteFile(path, nil, 0o666) },
	} {
		require.NoError(t, plant(), name)
		require.NoError(t, os.Lchown(path, other, other))
		require.ErrorIs(t, write(path, Pprof, recording(t, 1)), fs.ErrPermission, name)
		content, err := os.ReadFile(victim)
		require.NoError(t, err)
		assert.Equal(t, "before", string(content), name)
		require.NoError(t, os.Remove(path))
		assert.NoFileExists(t, filepath.Join(dir, "nothing"))
	}
	require.NoError(t, write(path, Pprof, recording(t, 1)), "an own file")
	require.NoError(t, write(path, Pprof, recording(t, 1)), "again")
}

// TestJSON compares the output with a reviewed file. This covers the rules for field names, hexadecimal ids and
// numbers in quotes.
func TestJSON(t *testing.T) {
	data := recording(t, 1)
	data.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].ProfileId = []byte("0123456789abcdef")
	var got bytes.Buffer
	require.NoError(t, json.Indent(&got, append(asJSON(t, data), '\n'), "", "  "))
	golden.Compare(t, "recording.json", got.String())
}

// TestLongRecordings checks that encoders do not retain what they have written: 24 MiB of attributes increase the heap
// by less than 8 MiB.
func TestLongRecordings(t *testing.T) {
	const parts, most = 24, 8 << 20
	for _, format := range []Format{Pprof, OTLP, JSON, JSONLines, Folded, HTML} {
		f, err := Create(t.Context(), filepath.Join(t.TempDir(), "profile"), format, nil)
		require.NoError(t, err)
		before := heap()
		for i := range parts {
			require.NoError(t, f.Add(largeProfile(i)))
		}
		assert.Less(t, heap(), before+most, format)
		require.NoError(t, f.Close())
	}
}

// largeProfile returns a recording with 1 MiB of unique attributes.
func largeProfile(number int) *profilespb.ProfilesData {
	const samples, size = 1 << 10, 1 << 10
	b := profile.New(profile.Options{Start: time.Unix(1700000000, 0), Frequency: 99})
	for i := range samples {
		value := fmt.Sprintf("%0*d", size, number*samples+i)
		b.Add(profile.Resource{}, nil, [16]byte{}, [8]byte{}, []*commonpb.KeyValue{profile.StringAttribute("key", value)}, time.Unix(1700000001, 0))
	}
	return b.Data(time.Unix(1700000002, 0))
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestNoDirectoryForTemporaryFiles checks that a file can be written even if TMPDIR does not exist. Temporary files are
// then created next to it.
func TestNoDirectoryForTemporaryFiles(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	dir := t.TempDir()
	t.Chdir(t.TempDir()) // Standard output is beside any file.
	f, err := Create(t.Context(), filepath.Join(dir, "x.json"), JSON, nil)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1, "no temporary files are left")
	f, err = Create(t.Context(), "-", JSON, io.Discard)
	require.NoError(t, err)
	require.NoError(t, f.Discard())
}

// TestJSONOfValues checks that values are encoded as package protojson encodes them.
func TestJSONOfValues(t *testing.T) {
	list := &commonpb.ArrayValue{}
	for _, n := range []float64{0, math.Copysign(0, -1), -1.5, 1e-7, 1e20, 1e21, math.MaxFloat64, math.NaN(), math.Inf(1), math.Inf(-1)} {
		list.Values = append(list.Values, &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: n}})
	}
	for _, text := range []string{"", "<&>\u2028", "\x00\t\"\\", "\ufffdü"} {
		list.Values = append(list.Values, &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: text}})
	}
	for _, bytes := range [][]byte{nil, {}, {0xff, 0xfe, 0}} {
		list.Values = append(list.Values, &commonpb.AnyValue{Value: &commonpb.AnyValue_BytesValue{BytesValue: bytes}})
	}
	list.Values = append(list.Values,
		&commonpb.AnyValue{},
		&commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{}},
		&commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: math.MinInt64}},
		&commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{}}},
		&commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{
			Values: []*commonpb.KeyValue{{Key: "k"}, profile.IntAttribute("n", 1)},
		}}},
	)
	want, err := protojson.Marshal(list)
	require.NoError(t, err)
	assert.Equal(t, normal(t, want), normal(t, asJSON(t, list)))
}
