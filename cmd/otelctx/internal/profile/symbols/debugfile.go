// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"debug/elf"
	"path"
	"strings"

	"github.com/otelctx/otelctx/internal/elffile"
)

// debugDirectory contains the separate debug files of stripped files.
const debugDirectory = "/usr/lib/debug"

// debugFile is a file that contains the symbols of a stripped file, at the same virtual addresses. It is attached
// to a region and not to the stripped file, so that the debug files of a process affect only its own samples.
type debugFile struct {
	file *file
	// segments holds the segments of the stripped file, which map offsets to addresses.
	segments []elf.Prog64
}

// lacking describes a file without symbols, as needed to find and use its debug file.
type lacking struct {
	// link is the debug file's name as given in the section .gnu_debuglink, or "".
	link string
	// segments holds the segments of the described file.
	segments []elf.Prog64
}

// lacks returns nil if the file has symbols, and otherwise the data for finding its debug file.
func lacks(f *elffile.File) *lacking {
	for i := range f.Sections {
		if elf.SectionType(f.Sections[i].Type) == elf.SHT_SYMTAB {
			return nil
		}
	}
	l := &lacking{segments: f.Segments}
	if s := f.Named(".gnu_debuglink"); s != nil {
		l.link, _ = f.Content(s).Text(0)
	}
	return l
}

// openDebug returns the debug file of a region's file, or nil. It searches by build id and by the name in
// .gnu_debuglink, first in this process's file system and then in the recorded process's. It accepts only a file
// with the same build id.
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

// debugNames returns the possible paths of the debug file for the file at filePath.
func debugNames(filePath, link, buildID string) []string {
	var names []string
	const prefix = 2 // digits of the build id that name a directory
	if len(buildID) > prefix {
		names = append(names, path.Join(debugDirectory, ".build-id", buildID[:prefix], buildID[prefix:]+".debug"))
	}
	if link == "" || link == ".." || strings.Contains(link, "/") || !path.IsAbs(filePath) {
		return names
	}
	dir := path.Dir(filePath)
	return append(names, path.Join(debugDirectory, dir, link), path.Join(dir, ".debug", link), path.Join(dir, link))
}

// openDebugNamed opens the file at a path in the file system of this process (own) or of the region's process.
func (f *Files) openDebugNamed(r *Region, own bool, name string) *file {
	named, id, err := r.process.openDebugFile(own, name)
	if err != nil {
		return nil
	}
	defer func() { _ = named.Close() }()
	return f.openNamed(r.process.user, named, id)
}

// locate returns the function at an offset of the stripped file.
func (d *debugFile) locate(offset uint64) []Line {
	address, ok := (&elffile.File{Segments: d.segments}).Address(offset)
	if !ok {
		return nil
	}
	lines, _ := d.file.locateAddress(address)
	return lines
}
