// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

// image is an ELF file.
type image struct{}

func (m *mapped) close() {}

// locate returns what is known about address, which is in m, or in no mapping if that
// is nil.
func (p *Process) locate(m *mapped, address uint64) *Location {
	l := &Location{Address: address}
	if m != nil {
		l.Mapping = &m.Mapping
	}
	return l
}
