// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bufio"
	"cmp"
	"hash/maphash"
	"io"
	"os"
	"slices"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// otlpEncoder writes one ProfilesData message in parts. This works because protobuf decodes concatenated messages as
// one message that has the elements of all of them. Each part adds entries to the dictionary's tables.
type otlpEncoder struct {
	to     io.Writer
	tables tables
}

func (e *otlpEncoder) add(data *profilespb.ProfilesData) error {
	part, err := e.tables.append(data)
	if err != nil {
		return err
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(part)
	if err != nil {
		return err
	}
	_, err = e.to.Write(b)
	return err
}

func (*otlpEncoder) close() error { return nil }

// jsonEncoder writes one ProfilesData message in OTLP's JSON encoding. In a JSON object each field occurs only once,
// so the tables of the dictionary must be written as a whole, after the last part. Until then their entries are kept
// in files, so that only the current part is in memory.
type jsonEncoder struct {
	to     jsonWriter
	tables tables
	begun  bool
	// waiting holds the tables of the dictionary, sorted by name.
	waiting []*waitingTable
}

// waitingTable is a table whose encoded entries are kept in a file, separated by commas.
type waitingTable struct {
	field protoreflect.FieldDescriptor
	file  *os.File
	to    jsonWriter
	begun bool
}

func newJSONEncoder(to *bufio.Writer, spool func() (*os.File, error)) (*jsonEncoder, error) {
	e := &jsonEncoder{to: jsonWriter{to}}
	fields := (&profilespb.ProfilesDictionary{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		file, err := spool()
		if err != nil {
			return nil, err
		}
		e.waiting = append(e.waiting, &waitingTable{field: fields.Get(i), file: file, to: jsonWriter{bufio.NewWriter(file)}})
	}
	slices.SortFunc(e.waiting, func(a, b *waitingTable) int { return cmp.Compare(a.field.JSONName(), b.field.JSONName()) })
	return e, nil
}

func (e *jsonEncoder) add(data *profilespb.ProfilesData) error {
	part, err := e.tables.append(data)
	if err != nil {
		return err
	}
	for _, r := range part.GetResourceProfiles() {
		separator := ","
		if !e.begun {
			separator, e.begun = `{"resourceProfiles":[`, true
		}
		e.to.text(separator)
		e.to.message(r)
	}
	dictionary := part.GetDictionary().ProtoReflect()
	for _, t := range e.waiting {
		entries := dictionary.Get(t.field).List()
		t.to.elements(t.field, entries, t.begun)
		t.begun = t.begun || entries.Len() > 0
		err = cmp.Or(err, t.to.failure())
	}
	return cmp.Or(err, e.to.failure())
}

func (e *jsonEncoder) close() error {
	if !e.begun {
		e.to.text(`{"resourceProfiles":[`)
	}
	separator := `],"dictionary":{`
	for _, t := range e.waiting {
		if t.begun {
			e.to.text(separator + `"` + t.field.JSONName() + `":[`)
			separator = ","
			if err := t.copyTo(e.to); err != nil {
				return err
			}
			e.to.text("]")
		}
	}
	if separator != "," {
		e.to.text(separator)
	}
	e.to.text("}}\n")
	return nil
}

// copyTo copies the entries to w.
func (t *waitingTable) copyTo(w io.Writer) error {
	if err := t.to.Flush(); err != nil {
		return err
	}
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(w, t.file)
	return err
}

// linesEncoder writes one ProfilesData message per line.
type linesEncoder struct{ to jsonWriter }

func (e *linesEncoder) add(data *profilespb.ProfilesData) error {
	e.to.message(data)
	e.to.text("\n")
	return e.to.failure()
}

func (*linesEncoder) close() error { return nil }

// tables assigns indices to the entries of all parts, so that the parts share one dictionary. Equal entries get the
// same index (but see maxKnownEntries).
type tables struct{ mappings, locations, functions, links, strings, attributes, stacks table }

// maxKnownEntries is the maximum number of entries that are remembered for a table. When it is reached, all of them
// are forgotten. An entry may then be added to the file again, which the format tolerates. The functions of a typical
// recording stay below the limit. Links may exceed it, but few of them occur in more than one part.
const maxKnownEntries = 1 << 15

// table assigns indices to the entries of one table of the shared dictionary.
type table struct {
	known map[entryHash]int32
	count int32
}

// entryHash identifies the content of an entry. It has 128 bits and random seeds, so collisions do not occur in
// practice.
type entryHash [2]uint64

var entrySeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// place returns the index of the entry with the given content, and whether the entry is new. Empty content stands
// for the zero value, which always has index 0.
func (t *table) place(content []byte) (index int32, isNew bool) {
	hash := entryHash{maphash.Bytes(entrySeeds[0], content), maphash.Bytes(entrySeeds[1], content)}
	if index, ok := t.known[hash]; ok {
		return index, false
	}
	if len(content) == 0 && t.count > 0 {
		return 0, false
	}
	if t.known == nil || len(t.known) >= maxKnownEntries {
		t.known = map[entryHash]int32{}
	}
	index = t.count
	t.known[hash] = index
	t.count++
	return index, true
}

// places returns, for each entry of a part's table, its index in the shared dictionary. It also removes the entries
// that earlier parts contain from the part's table.
func places[T any](t *table, entries *[]T, content func(T) []byte) []int32 {
	indices, left := make([]int32, len(*entries)), (*entries)[:0]
	for i, e := range *entries {
		index, isNew := t.place(content(e))
		if indices[i] = index; isNew {
			left = append(left, e)
		}
	}
	*entries = left
	return indices
}

// append returns a copy of data as the next part of a file. The copy's dictionary holds only entries that earlier
// parts lack, and its indices refer to the dictionary that all parts form together.
func (t *tables) append(data *profilespb.ProfilesData) (*profilespb.ProfilesData, error) {
	part := proto.CloneOf(data)
	d := part.GetDictionary()
	var err error
	encode := func(m proto.Message) []byte {
		b, failed := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		err = cmp.Or(err, failed)
		return b
	}
	// A table must be processed after the tables that it refers to.
	strings := places(&t.strings, &d.StringTable, func(s string) []byte { return []byte(s) })
	attributes := places(&t.attributes, &d.AttributeTable, func(a *profilespb.KeyValueAndUnit) []byte {
		remap(strings, &a.KeyStrindex, &a.UnitStrindex)
		return encode(a)
	})
	functions := places(&t.functions, &d.FunctionTable, func(f *profilespb.Function) []byte {
		remap(strings, &f.NameStrindex, &f.SystemNameStrindex, &f.FilenameStrindex)
		return encode(f)
	})
	mappings := places(&t.mappings, &d.MappingTable, func(m *profilespb.Mapping) []byte {
		remap(strings, &m.FilenameStrindex)
		remapAll(attributes, m.GetAttributeIndices())
		return encode(m)
	})
	locations := places(&t.locations, &d.LocationTable, func(l *profilespb.Location) []byte {
		remap(mappings, &l.MappingIndex)
		remapAll(attributes, l.GetAttributeIndices())
		for _, line := range l.GetLines() {
			remap(functions, &line.FunctionIndex)
		}
		return encode(l)
	})
	stacks := places(&t.stacks, &d.StackTable, func(s *profilespb.Stack) []byte {
		remapAll(locations, s.GetLocationIndices())
		return encode(s)
	})
	links := places(&t.links, &d.LinkTable, func(l *profilespb.Link) []byte { return encode(l) })
	for _, p := range profile.Each(part) {
		for _, v := range []*profilespb.ValueType{p.GetSampleType(), p.GetPeriodType()} {
			if v != nil {
				remap(strings, &v.TypeStrindex, &v.UnitStrindex)
			}
		}
		remapAll(attributes, p.GetAttributeIndices())
		for _, s := range p.GetSamples() {
			remap(stacks, &s.StackIndex)
			remap(links, &s.LinkIndex)
			remapAll(attributes, s.GetAttributeIndices())
		}
	}
	return part, err
}

// remap replaces each index i with to[i].
func remap(to []int32, indices ...*int32) {
	for _, i := range indices {
		*i = to[*i]
	}
}

func remapAll(to, indices []int32) {
	for n, i := range indices {
		indices[n] = to[i]
	}
}
