// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
)

// Limits for a maps file. A name has at most PATH_MAX (4096) bytes, and an escaped byte takes up
// four. Some distributions have raised vm.max_map_count to 1,048,576.
const (
	maxMapsLine  = 32 << 10
	maxMapsLines = 1 << 22
)

// ErrMalformed is wrapped by errors about contents that the kernel would not have written, or that
// exceed the limits of this package.
var ErrMalformed = errors.New("malformed")

// Mapping is one line of /proc/pid/maps, proc_pid_maps(5).
type Mapping struct {
	// Start is the first address, and End the address after the last.
	Start, End uint64
	Perms      Perms
	Offset     uint64
	// Major and Minor are the number of the device to which Inode belongs.
	Major, Minor uint32
	Inode        uint64
	// Name is the text after the inode, exactly as the kernel wrote it. It is a path in which a
	// newline is escaped as \012, a pseudo-path such as [heap] or anon_inode:[perf_event], or
	// empty.
	Name string
}

// Perms are the permissions of a mapping.
type Perms struct{ Read, Write, Exec, Shared bool }

// Maps yields those mappings in r for whose name keep returns true, in address order. keep must not
// retain its argument. Lines for which keep returns false are not parsed and cost no allocation.
//
// It holds at most 32 KiB of r in memory, and accepts at most 4,194,304 lines of at most 32 KiB
// each, including the newline. The sequence ends after the first error, which is r's error or wraps
// [ErrMalformed].
func Maps(r io.Reader, keep func(name []byte) bool) iter.Seq2[Mapping, error] {
	return func(yield func(Mapping, error) bool) {
		s := bufio.NewScanner(r)
		s.Buffer(make([]byte, 0, 16<<10), maxMapsLine)
		s.Split(scanLines)
		lines := 0
		for s.Scan() {
			if lines++; lines > maxMapsLines {
				yield(Mapping{}, fmt.Errorf("%w maps: more than %d lines", ErrMalformed, maxMapsLines))
				return
			}
			fields, name := cutName(s.Bytes())
			if !keep(name) {
				continue
			}
			m, err := parseFields(fields)
			if err != nil {
				yield(Mapping{}, fmt.Errorf("%w maps line %d: %w", ErrMalformed, lines, err))
				return
			}
			m.Name = string(name)
			if !yield(m, nil) {
				return
			}
		}
		if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
			yield(Mapping{}, fmt.Errorf("%w maps line %d: longer than %d bytes", ErrMalformed, lines+1, maxMapsLine))
		} else if err != nil {
			yield(Mapping{}, fmt.Errorf("maps: %w", err))
		}
	}
}

// scanLines is like bufio.ScanLines, but does not strip carriage returns: a name may end with one.
func scanLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// mapsFields is the number of fields before the name: address, perms, offset, dev, inode.
const mapsFields = 5

// cutName splits a line after the inode. The kernel pads the line with spaces up to the name. A
// space at the start of a name would look like padding, but names do not start with one: they start
// with '/', '[' or a letter (anon_inode:).
func cutName(line []byte) (fields, name []byte) {
	end := 0
	for range mapsFields {
		i := bytes.IndexByte(line[end:], ' ')
		if i < 0 {
			return line, nil
		}
		end += i + 1
	}
	return line[:end], bytes.TrimLeft(line[end:], " ")
}

func parseFields(line []byte) (Mapping, error) {
	// bytes.Fields would accept other separators than the single space that the kernel writes.
	var f [mapsFields][]byte
	rest := line
	for i := range f {
		var ok bool
		f[i], rest, ok = bytes.Cut(rest, []byte{' '})
		if !ok && i < mapsFields-1 {
			return Mapping{}, fmt.Errorf("%d of %d fields", i+1, mapsFields)
		}
	}
	var m Mapping
	start, end, ok := bytes.Cut(f[0], []byte{'-'})
	if !ok {
		return Mapping{}, fmt.Errorf("address range %q", f[0])
	}
	var err error
	if m.Start, err = strconv.ParseUint(string(start), 16, 64); err != nil {
		return Mapping{}, fmt.Errorf("start: %w", err)
	}
	if m.End, err = strconv.ParseUint(string(end), 16, 64); err != nil {
		return Mapping{}, fmt.Errorf("end: %w", err)
	}
	if m.Start >= m.End {
		return Mapping{}, fmt.Errorf("address range %q is empty", f[0])
	}
	if m.Perms, err = parsePerms(f[1]); err != nil {
		return Mapping{}, err
	}
	if m.Offset, err = strconv.ParseUint(string(f[2]), 16, 64); err != nil {
		return Mapping{}, fmt.Errorf("offset: %w", err)
	}
	major, minor, ok := bytes.Cut(f[3], []byte{':'})
	if !ok {
		return Mapping{}, fmt.Errorf("device %q", f[3])
	}
	if m.Major, err = parseNumber(major); err != nil {
		return Mapping{}, fmt.Errorf("device: %w", err)
	}
	if m.Minor, err = parseNumber(minor); err != nil {
		return Mapping{}, fmt.Errorf("device: %w", err)
	}
	if m.Inode, err = strconv.ParseUint(string(f[4]), 10, 64); err != nil {
		return Mapping{}, fmt.Errorf("inode: %w", err)
	}
	return m, nil
}

func parseNumber(b []byte) (uint32, error) {
	n, err := strconv.ParseUint(string(b), 16, 32)
	return uint32(n), err
}

func parsePerms(b []byte) (Perms, error) {
	if len(b) != 4 {
		return Perms{}, fmt.Errorf("permissions %q", b)
	}
	p := Perms{Read: b[0] == 'r', Write: b[1] == 'w', Exec: b[2] == 'x', Shared: b[3] == 's'}
	if string(b) != p.String() {
		return Perms{}, fmt.Errorf("permissions %q", b)
	}
	return p, nil
}

// String returns the permissions as the kernel writes them, such as "rw-p".
func (p Perms) String() string {
	b := []byte("---p")
	for i, set := range [...]bool{p.Read, p.Write, p.Exec, p.Shared} {
		if set {
			b[i] = "rwxs"[i]
		}
	}
	return string(b)
}
