// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"encoding/json"
	"io"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// otlpEncoder writes one ProfilesData message in parts: protobuf has it that messages whose
// encodings stand one behind the other are one message, with the elements of all. The
// tables of a part go on where those of the part before end. What several parts have is in
// the tables several times, which the format allows.
type otlpEncoder struct {
	to     io.Writer
	tables tables
}

func (e *otlpEncoder) add(data *profilespb.ProfilesData) error {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.tables.append(data))
	if err != nil {
		return err
	}
	_, err = e.to.Write(b)
	return err
}

func (*otlpEncoder) close() error { return nil }

// jsonEncoder writes one ProfilesData message in OTLP's JSON encoding. An object has a field
// once, so that the tables wait in memory for the end.
type jsonEncoder struct {
	to         io.Writer
	tables     tables
	dictionary profilespb.ProfilesDictionary
	begun      bool
}

func (e *jsonEncoder) add(data *profilespb.ProfilesData) error {
	part := e.tables.append(data)
	proto.Merge(&e.dictionary, part.GetDictionary())
	part.Dictionary = nil
	document, err := jsonDocument(part)
	if err != nil {
		return err
	}
	profiles, _ := document["resourceProfiles"].([]any)
	for _, p := range profiles {
		separator := ","
		if !e.begun {
			separator, e.begun = `{"resourceProfiles":[`, true
		}
		b, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(e.to, separator+string(b)); err != nil {
			return err
		}
	}
	return nil
}

func (e *jsonEncoder) close() error {
	document, err := jsonDocument(&profilespb.ProfilesData{Dictionary: &e.dictionary})
	if err != nil {
		return err
	}
	b, err := json.Marshal(document["dictionary"])
	if err != nil {
		return err
	}
	end := `],"dictionary":`
	if !e.begun {
		end = `{"resourceProfiles":[` + end
	}
	_, err = io.WriteString(e.to, end+string(b)+"}\n")
	return err
}

// linesEncoder writes a ProfilesData message in each line.
type linesEncoder struct{ to io.Writer }

func (e *linesEncoder) add(data *profilespb.ProfilesData) error {
	b, err := MarshalJSON(data)
	if err != nil {
		return err
	}
	_, err = e.to.Write(b)
	return err
}

func (*linesEncoder) close() error { return nil }

// tables counts the entries of a dictionary's tables so far, without the zero values at
// their beginnings.
type tables struct {
	begun                                                              bool
	mappings, locations, functions, links, strings, attributes, stacks int32
}

// append returns data with tables that go on where those before end. data stays as it is.
func (t *tables) append(data *profilespb.ProfilesData) *profilespb.ProfilesData {
	part := proto.CloneOf(data)
	d := part.GetDictionary()
	for _, m := range d.GetMappingTable() {
		shift(&m.FilenameStrindex, t.strings)
		shiftAll(m.GetAttributeIndices(), t.attributes)
	}
	for _, l := range d.GetLocationTable() {
		shift(&l.MappingIndex, t.mappings)
		shiftAll(l.GetAttributeIndices(), t.attributes)
		for _, line := range l.GetLines() {
			shift(&line.FunctionIndex, t.functions)
		}
	}
	for _, f := range d.GetFunctionTable() {
		shift(&f.NameStrindex, t.strings)
		shift(&f.SystemNameStrindex, t.strings)
		shift(&f.FilenameStrindex, t.strings)
	}
	for _, a := range d.GetAttributeTable() {
		shift(&a.KeyStrindex, t.strings)
		shift(&a.UnitStrindex, t.strings)
	}
	for _, s := range d.GetStackTable() {
		shiftAll(s.GetLocationIndices(), t.locations)
	}
	for _, r := range part.GetResourceProfiles() {
		for _, s := range r.GetScopeProfiles() {
			for _, p := range s.GetProfiles() {
				t.shiftProfile(p)
			}
		}
	}
	further := t.begun
	t.begun = true
	d.MappingTable = next(d.GetMappingTable(), &t.mappings, further)
	d.LocationTable = next(d.GetLocationTable(), &t.locations, further)
	d.FunctionTable = next(d.GetFunctionTable(), &t.functions, further)
	d.LinkTable = next(d.GetLinkTable(), &t.links, further)
	d.StringTable = next(d.GetStringTable(), &t.strings, further)
	d.AttributeTable = next(d.GetAttributeTable(), &t.attributes, further)
	d.StackTable = next(d.GetStackTable(), &t.stacks, further)
	return part
}

func (t *tables) shiftProfile(p *profilespb.Profile) {
	for _, v := range []*profilespb.ValueType{p.GetSampleType(), p.GetPeriodType()} {
		if v != nil {
			shift(&v.TypeStrindex, t.strings)
			shift(&v.UnitStrindex, t.strings)
		}
	}
	shiftAll(p.GetAttributeIndices(), t.attributes)
	for _, s := range p.GetSamples() {
		shift(&s.StackIndex, t.stacks)
		shift(&s.LinkIndex, t.links)
		shiftAll(s.GetAttributeIndices(), t.attributes)
	}
}

// shift moves an index by so many entries. 0 stands for nothing everywhere.
func shift(index *int32, by int32) {
	if *index != 0 {
		*index += by
	}
}

func shiftAll(indices []int32, by int32) {
	for i := range indices {
		shift(&indices[i], by)
	}
}

// next returns what of a table is to be written, and counts it: the zero value only once.
func next[T any](table []T, count *int32, further bool) []T {
	if len(table) == 0 {
		return table
	}
	*count += int32(len(table) - 1)
	if further {
		return table[1:]
	}
	return table
}
