// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"debug/elf"
	"path"
	"strings"
)

// debugDirectory has the symbols of files that were stripped of them.
const debugDirectory = "/usr/lib/debug"

// debugFile names the functions of another file, whose addresses it shares. It is a region's,
// not that file's: a process decides only by which symbols its own samples are named.
type debugFile struct {
	file *file
	// segments are those of the other file. They say at which address an offset is.
	segments []elf.Prog64
}

// lacking is what a file without symbols says of the one that has them.
type lacking struct {
	// link is its name, if it has one.
	link string
	// segments are those of the file itself.
	segments []elf.Prog64
}

// lacks returns nil if the file has symbols.
func (f *elfFile) lacks() *lacking {
	for i := range f.sections {
		if elf.SectionType(f.sections[i].Type) == elf.SHT_SYMTAB {
			return nil
		}
	}
	l := &lacking{segments: f.segments}
	if s := f.named(".gnu_debuglink"); s != nil {
		l.link, _ = f.content(s).text(0)
	}
	return l
}

// openDebug returns the file with the symbols of a region's file, or nil. It has the same
// build id. It is looked for by the build id, and by the name that the file gives it
// (.gnu_debuglink). Both this process's files and the recorded process's are searched.
func (f *Files) openDebug(r *Region, of *file) *debugFile {
	if of == nil || of.gnuBuildID == "" || of.lacks == nil {
		return nil
	}
	for _, own := range []bool{true, false} {
		for _, name := range debugNames(r.mapping.Path, of.lacks.link, of.gnuBuildID) {
			if o := f.openDebugNamed(r, own, name); o != nil && o.gnuBuildID == of.gnuBuildID {
				return &debugFile{o, of.lacks.segments}
			}
		}
	}
	return nil
}

// debugNames returns where the symbols of the file at filePath may be.
func debugNames(filePath, link, buildID string) []string {
	var names []string
	const first = 2 // digits
	if len(buildID) > first {
		names = append(names, path.Join(debugDirectory, ".build-id", buildID[:first], buildID[first:]+".debug"))
	}
	if link == "" || link == ".." || strings.Contains(link, "/") || !path.IsAbs(filePath) {
		return names
	}
	dir := path.Dir(filePath)
	return append(names, path.Join(debugDirectory, dir, link), path.Join(dir, ".debug", link), path.Join(dir, link))
}

// openDebugNamed opens a file where this process, or that of a region, has it.
func (f *Files) openDebugNamed(r *Region, own bool, name string) *file {
	named, id, err := r.process.openDebugFile(own, name)
	if err != nil {
		return nil
	}
	defer func() { _ = named.Close() }()
	return f.openNamed(r.process.user, named, id)
}

// locate names what is at an offset of the other file.
func (d *debugFile) locate(offset uint64) []Line {
	address, ok := (&elfFile{segments: d.segments}).address(offset)
	if !ok {
		return nil
	}
	lines, _ := d.file.locateAddress(address)
	return lines
}
