// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/procfs"
)

// maxRegions bounds the executable mappings of a process that are known. What is in others
// has no names.
const maxRegions = 1 << 14

// Process knows what a process has mapped. It is safe for concurrent use.
type Process struct {
	pid     int
	user    int
	proc    *procfs.Process
	files   *Files
	refresh sync.Mutex
	table   atomic.Pointer[Table]
	perf    perfMap
}

// Table is what a process had mapped at one moment. It does not change.
type Table struct{ regions []*Region } // by address

// Region is an executable mapping of a process.
type Region struct {
	process      *Process
	major, minor uint32 // the numbers of the device that inode is on
	inode        uint64
	mapping      Mapping // without build ids

	wanted     atomic.Bool
	attachOnce sync.Once
	attached   atomic.Pointer[attached]
}

// attached is a region's file, nil if it has none that can be read, and the file with its
// symbols, nil if there is none.
type attached struct {
	file    *file
	debug   *debugFile
	mapping *Mapping
}

// Open begins with what a process has mapped now. It takes the permission to read that;
// the error wraps procfs.ErrProcessGone if there is no such process, and may wrap
// fs.ErrPermission. It may have to wait for the process. Close releases it.
func (f *Files) Open(pid int) (*Process, error) {
	proc, err := procfs.NewFS("/proc").Process(pid)
	if err != nil {
		return nil, err
	}
	p := &Process{pid: pid, proc: proc, files: f, perf: perfMap{reading: make(chan struct{}, 1)}}
	p.table.Store(&Table{})
	if p.user, err = procfs.NewFS("/proc").User(pid); err == nil {
		err = p.Refresh()
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	if slices.ContainsFunc(p.table.Load().regions, (*Region).Compiled) {
		p.attachPerfMap()
	}
	return p, nil
}

// User returns the real user id of the process.
func (p *Process) User() int { return p.user }

// Close releases what p holds. What tables and locations say stays valid, and regions that
// have been attached still name what is in them.
func (p *Process) Close() error {
	p.closePerfMap()
	return p.proc.Close()
}

// Table returns what the process had mapped at the last look.
func (p *Process) Table() *Table { return p.table.Load() }

// Refresh looks at what the process has mapped now. Regions that are the same stay the same.
// After an error, and once the process has no memory any more, what was known stays. It
// may have to wait for the process.
func (p *Process) Refresh() error {
	p.refresh.Lock()
	defer p.refresh.Unlock()
	old := p.table.Load().regions
	now := &Table{}
	for m, err := range p.proc.Maps(func([]byte) bool { return true }) {
		if err != nil {
			return err
		}
		if !m.Perms.Exec {
			continue
		}
		if len(now.regions) == maxRegions {
			break
		}
		r := &Region{process: p, major: m.Major, minor: m.Minor, inode: m.Inode, mapping: Mapping{
			Start: m.Start, Limit: m.End, FileOffset: m.Offset, Path: strings.TrimSuffix(m.Name, " (deleted)"),
		}}
		// Both lists are by address.
		for len(old) > 0 && old[0].mapping.Start < m.Start {
			old = old[1:]
		}
		if len(old) > 0 && old[0].same(r) {
			r = old[0]
		}
		now.regions = append(now.regions, r)
	}
	if len(now.regions) > 0 { // else it is ending
		p.table.Store(now)
	}
	return nil
}

func (r *Region) same(o *Region) bool {
	return r.mapping == o.mapping && r.inode == o.inode && r.major == o.major && r.minor == o.minor
}

// Attach opens the files of the first regions, by address, as [Region.Attach] does.
func (t *Table) Attach(most int) {
	for _, r := range t.regions[:min(len(t.regions), most)] {
		if r.Want() {
			r.Attach()
		}
	}
}

// Find returns the region that an address is in, or nil.
func (t *Table) Find(address uint64) *Region {
	i, exact := slices.BinarySearchFunc(t.regions, address, func(r *Region, a uint64) int { return cmp.Compare(r.mapping.Start, a) })
	if !exact {
		i--
	}
	if i < 0 || address >= t.regions[i].mapping.Limit {
		return nil
	}
	return t.regions[i]
}

// Want reports whether the region is to be attached, once: later calls return false.
func (r *Region) Want() bool { return !r.Attached() && r.wanted.CompareAndSwap(false, true) }

// Attach opens the file that the region is mapped from. It has to be done while the process
// lives, and may have to wait for the process or a file system. If another goroutine does so
// already, Attach waits for that.
func (r *Region) Attach() { r.attachOnce.Do(r.attach) }

// Attached reports whether [Region.Attach] has returned.
func (r *Region) Attached() bool { return r.attached.Load() != nil }

func (r *Region) attach() {
	a := &attached{file: r.process.files.open(r)}
	if r.Compiled() {
		r.process.attachPerfMap()
	}
	a.debug = r.process.files.openDebug(r, a.file)
	mapping := r.mapping
	if a.file != nil {
		mapping.GNUBuildID, mapping.GoBuildID, mapping.HTLHash = a.file.gnuBuildID, a.file.goBuildID, a.file.htlHash
	}
	a.mapping = &mapping
	r.attached.Store(a)
}

// Locate returns what is known about an address in the region, that of an instruction. It
// never returns nil. It may have to wait for a file system. Code that was compiled at run time has no
// lines until [Process.NameCompiled] sets them.
func (r *Region) Locate(address uint64) *Location {
	a := r.attached.Load()
	if a == nil {
		mapping := r.mapping
		return &Location{Address: address, Mapping: &mapping}
	}
	l := &Location{Address: address, Mapping: a.mapping}
	if a.file != nil {
		offset := address - r.mapping.Start + r.mapping.FileOffset
		l.Lines, l.Type = a.file.locate(offset)
		if a.debug != nil && l.Type == TypeNative {
			if lines := a.debug.locate(offset); len(lines) > 0 {
				l.Lines = lines
			}
		}
	}
	return l
}

// Compiled reports whether the region has code that was compiled at run time: no file with a name has
// it.
func (r *Region) Compiled() bool {
	return r.inode == 0 && !strings.HasPrefix(r.mapping.Path, "[v") || strings.HasPrefix(r.mapping.Path, "/memfd:")
}

// Unwant lets [Region.Want] return true once more.
func (r *Region) Unwant() { r.wanted.Store(false) }

// PID returns the id of the process that has the region.
func (r *Region) PID() int { return r.process.pid }
