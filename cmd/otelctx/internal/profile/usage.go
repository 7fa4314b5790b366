// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

// usage records for each entry of each table of a dictionary whether it is referenced. Its methods mark entries as used,
// along with all entries that these refer to. The indices in the entries must be valid.
type usage struct {
	dictionary                                                         *profilespb.ProfilesDictionary
	mappings, locations, functions, links, strings, attributes, stacks []bool
}

func newUsage(d *profilespb.ProfilesDictionary) usage {
	return usage{
		dictionary: d,
		mappings:   make([]bool, len(d.GetMappingTable())),
		locations:  make([]bool, len(d.GetLocationTable())),
		functions:  make([]bool, len(d.GetFunctionTable())),
		links:      make([]bool, len(d.GetLinkTable())),
		strings:    make([]bool, len(d.GetStringTable())),
		attributes: make([]bool, len(d.GetAttributeTable())),
		stacks:     make([]bool, len(d.GetStackTable())),
	}
}

// profile marks everything that a profile uses.
func (u *usage) profile(p *profilespb.Profile) {
	u.valueType(p.GetSampleType())
	u.valueType(p.GetPeriodType())
	u.useAttributes(p.GetAttributeIndices())
	for _, s := range p.GetSamples() {
		u.stack(s.GetStackIndex())
		u.links[s.GetLinkIndex()] = true
		u.useAttributes(s.GetAttributeIndices())
	}
}

func (u *usage) valueType(t *profilespb.ValueType) {
	u.strings[t.GetTypeStrindex()], u.strings[t.GetUnitStrindex()] = true, true
}

func (u *usage) stack(i int32) {
	if u.stacks[i] {
		return
	}
	u.stacks[i] = true
	for _, i := range u.dictionary.GetStackTable()[i].GetLocationIndices() {
		u.location(i)
	}
}

func (u *usage) location(i int32) {
	if u.locations[i] {
		return
	}
	u.locations[i] = true
	l := u.dictionary.GetLocationTable()[i]
	u.useAttributes(l.GetAttributeIndices())
	for _, line := range l.GetLines() {
		u.functions[line.GetFunctionIndex()] = true
		f := u.dictionary.GetFunctionTable()[line.GetFunctionIndex()]
		u.strings[f.GetNameStrindex()] = true
		u.strings[f.GetSystemNameStrindex()] = true
		u.strings[f.GetFilenameStrindex()] = true
	}
	u.mappings[l.GetMappingIndex()] = true
	m := u.dictionary.GetMappingTable()[l.GetMappingIndex()]
	u.strings[m.GetFilenameStrindex()] = true
	u.useAttributes(m.GetAttributeIndices())
}

// useAttributes ignores indices that are not valid.
func (u *usage) useAttributes(indices []int32) {
	for _, i := range indices {
		if i < 0 || int(i) >= len(u.attributes) || u.attributes[i] {
			continue
		}
		u.attributes[i] = true
		a := u.dictionary.GetAttributeTable()[i]
		u.strings[a.GetKeyStrindex()] = true
		u.strings[a.GetUnitStrindex()] = true
	}
}
