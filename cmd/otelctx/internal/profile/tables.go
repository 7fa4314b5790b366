// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"hash/maphash"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// Tables assigns indices to the dictionary entries of several messages, so that the messages share one dictionary. Equal
// entries get the same index (but see maxKnownEntries).
type Tables struct{ mappings, locations, functions, links, strings, attributes, stacks table }

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

// places copies the used entries of a table and calls remap for each copy, which replaces the indices in it. It returns
// the index of each used entry in the shared dictionary, and the copies that earlier messages lack.
func places[M proto.Message](t *table, used []bool, entries []M, remap func(M)) (indices []int32, added []M) {
	indices = make([]int32, len(entries))
	for i, e := range entries {
		if i > 0 && !used[i] {
			continue
		}
		e = proto.CloneOf(e)
		remap(e)
		content, err := marshal.Marshal(e)
		if err != nil {
			panic("profile: a valid entry does not encode: " + err.Error())
		}
		index, isNew := t.place(content)
		if indices[i] = index; isNew {
			added = append(added, e)
		}
	}
	return indices, added
}

// Append returns a copy of data, which a [Builder] must have made, as the next message. The copy's dictionary holds only
// used entries that earlier messages lack, and its indices refer to the dictionary that all messages form together.
func (t *Tables) Append(data *profilespb.ProfilesData) *profilespb.ProfilesData {
	message := proto.CloneOf(&profilespb.ProfilesData{ResourceProfiles: data.GetResourceProfiles()})
	d, from, used := &profilespb.ProfilesDictionary{}, data.GetDictionary(), newUsage(data.GetDictionary())
	message.Dictionary = d
	for _, p := range Each(data) {
		used.profile(p)
	}
	strings := make([]int32, len(from.GetStringTable()))
	for i, s := range from.GetStringTable() {
		if i > 0 && !used.strings[i] {
			continue
		}
		index, isNew := t.strings.place([]byte(s))
		if strings[i] = index; isNew {
			d.StringTable = append(d.StringTable, s)
		}
	}
	var attributes, functions, mappings, locations, stacks, links []int32
	// A table must be processed after the tables that it refers to.
	attributes, d.AttributeTable = places(&t.attributes, used.attributes, from.GetAttributeTable(), func(a *profilespb.KeyValueAndUnit) {
		remap(strings, &a.KeyStrindex, &a.UnitStrindex)
	})
	functions, d.FunctionTable = places(&t.functions, used.functions, from.GetFunctionTable(), func(f *profilespb.Function) {
		remap(strings, &f.NameStrindex, &f.SystemNameStrindex, &f.FilenameStrindex)
	})
	mappings, d.MappingTable = places(&t.mappings, used.mappings, from.GetMappingTable(), func(m *profilespb.Mapping) {
		remap(strings, &m.FilenameStrindex)
		remapAll(attributes, m.GetAttributeIndices())
	})
	locations, d.LocationTable = places(&t.locations, used.locations, from.GetLocationTable(), func(l *profilespb.Location) {
		remap(mappings, &l.MappingIndex)
		remapAll(attributes, l.GetAttributeIndices())
		for _, line := range l.GetLines() {
			remap(functions, &line.FunctionIndex)
		}
	})
	stacks, d.StackTable = places(&t.stacks, used.stacks, from.GetStackTable(), func(s *profilespb.Stack) {
		remapAll(locations, s.GetLocationIndices())
	})
	links, d.LinkTable = places(&t.links, used.links, from.GetLinkTable(), func(*profilespb.Link) {})
	for _, p := range Each(message) {
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
	return message
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
