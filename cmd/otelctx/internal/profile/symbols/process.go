// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/otelctx/otelctx/internal/procfs"
)

const (
	// maxRegions bounds the executable mappings of a process that are known. Those of files come first:
	// what is in others can only be named by a perf map.
	maxRegions = 1 << 14
	// maxChanges bounds what the kernel tells of a process between two looks at its mappings. If there
	// is more, nothing has a name until the next look.
	maxChanges = 1 << 12
)

// Process knows what a process has mapped. It is safe for concurrent use.
type Process struct {
	pid   int
	user  int
	proc  *procfs.Process
	files *Files
	perf  perfMap
	// refresh is held by the goroutine that looks at the mappings.
	refresh sync.Mutex
	// generation counts the changes of what Find and Regions return.
	generation atomic.Uint64
	// leftOut is how many executable mappings there were too many.
	leftOut atomic.Int64

	mu       sync.Mutex
	timeline timeline
	// changes is how much the kernel has told since the last look.
	changes int
	// looked is when the last look began, and ignored when the last change was ignored since there were
	// too many.
	looked, ignored time.Time
}

// Region is an executable mapping of a process.
type Region struct {
	process      *Process
	major, minor uint32 // the numbers of the device that inode is on
	inode        uint64
	mapping      Mapping // without build ids

	wanted     atomic.Bool
	attachOnce sync.Once
	attached   atomic.Pointer[attached]
	// gone says that a look has not found the region any more, and the kernel may have replaced it
	// before that.
	gone atomic.Bool
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
	f.register(p) // before the first look, so that nothing is missed
	if p.user, err = procfs.NewFS("/proc").User(pid); err == nil {
		err = p.Refresh()
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	p.mu.Lock()
	compiled := slices.ContainsFunc(p.timeline.now, func(s span) bool { return s.region.Compiled() })
	p.mu.Unlock()
	if compiled {
		p.attachPerfMap()
	}
	return p, nil
}

// User returns the real user id of the process.
func (p *Process) User() int { return p.user }

// Close releases what p holds. Locations stay valid, and regions that have been attached still name what
// is in them.
func (p *Process) Close() error {
	p.files.unregister(p)
	p.closePerfMap()
	return p.proc.Close()
}

// Refresh looks at what the process has mapped now. Regions that are the same stay the same.
// After an error, and once the process has no memory any more, what was known stays. It
// may have to wait for the process.
func (p *Process) Refresh() error {
	p.refresh.Lock()
	defer p.refresh.Unlock()
	began := time.Now()
	var ofFiles, anonymous []*Region
	leftOut := 0
	for m, err := range p.proc.Maps(func([]byte) bool { return true }) {
		if err != nil {
			return err
		}
		if !m.Perms.Exec {
			continue
		}
		to := &ofFiles
		if m.Inode == 0 {
			to = &anonymous
		}
		if len(*to) == maxRegions {
			leftOut++
			continue
		}
		*to = append(*to, newRegion(p, m))
	}
	if len(ofFiles)+len(anonymous) == 0 {
		return nil // It is ending.
	}
	room := maxRegions - len(ofFiles)
	if len(anonymous) > room {
		leftOut += len(anonymous) - room
		anonymous = anonymous[:room]
	}
	found := append(ofFiles, anonymous...)
	slices.SortFunc(found, func(a, b *Region) int { return cmp.Compare(a.mapping.Start, b.mapping.Start) })
	p.leftOut.Store(int64(leftOut))

	p.mu.Lock()
	defer p.mu.Unlock()
	certain := p.certain()
	p.timeline.look(found, began, func(r *Region) { r.gone.Store(!certain) })
	p.looked, p.changes = began, 0
	p.generation.Add(1)
	return nil
}

// certain reports whether all that was mapped since the last look is known. p.mu is held.
func (p *Process) certain() bool {
	missed := p.files.missed.Load()
	return !p.files.untold.Load() && (missed == nil || missed.Before(p.looked)) && (p.ignored.IsZero() || p.ignored.Before(p.looked))
}

// LeftOut returns how many executable mappings the process had too many at the last look. What is in them
// has no names.
func (p *Process) LeftOut() int { return int(p.leftOut.Load()) }

// Attach opens the files of the first regions, by address, as [Region.Attach] does.
func (p *Process) Attach(most int) {
	p.mu.Lock()
	first := slices.Clone(p.timeline.now[:min(len(p.timeline.now), most)])
	p.mu.Unlock()
	for _, s := range first {
		if s.region.Want() {
			s.region.Attach()
		}
	}
}

// Find returns the region that an address is in by what is known now, or nil.
func (p *Process) Find(address uint64) *Region {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.timeline.find(address, time.Now())
}

// Generation changes whenever [Process.Regions] may return something else.
func (p *Process) Generation() uint64 { return p.generation.Load() + p.files.misses.Load() }

// Regions returns the regions that addresses were in at a time, nil where that is not known. If it is not
// certain, a region that [Region.Gone] may have been replaced before that time.
func (p *Process) Regions(addresses []uint64, at time.Time) (regions []*Region, certain bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	regions = make([]*Region, len(addresses))
	for i, a := range addresses {
		regions[i] = p.timeline.find(a, at)
	}
	return regions, p.certain()
}

// mapped notes what the kernel tells.
func (p *Process) mapped(at time.Time, m procfs.Mapping) {
	r := newRegion(p, m)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changes == maxChanges {
		p.timeline, p.ignored = timeline{}, time.Now()
		p.generation.Add(1)
	} else if p.timeline.insert(r, at) {
		p.changes++
		p.generation.Add(1)
	}
}

func newRegion(p *Process, m procfs.Mapping) *Region {
	return &Region{process: p, major: m.Major, minor: m.Minor, inode: m.Inode, mapping: Mapping{
		Start: m.Start, Limit: m.End, FileOffset: m.Offset, Path: strings.TrimSuffix(m.Name, " (deleted)"),
	}}
}

// same reports whether r and o are the same mapping. Paths may differ: a process sees them from its own
// root directory, and files are renamed.
func (r *Region) same(o *Region) bool {
	return r.mapping.Start == o.mapping.Start && r.mapping.Limit == o.mapping.Limit && r.mapping.FileOffset == o.mapping.FileOffset &&
		r.inode == o.inode && r.major == o.major && r.minor == o.minor
}

// continues reports whether o has at each address the same as r, if that is in both.
func (r *Region) continues(o *Region) bool {
	return r.inode == o.inode && r.major == o.major && r.minor == o.minor &&
		(r.anonymous() || r.mapping.Start-r.mapping.FileOffset == o.mapping.Start-o.mapping.FileOffset)
}

// anonymous reports whether the region is of no file.
func (r *Region) anonymous() bool { return r.inode == 0 }

// Gone reports whether a look has not found the region any more although the kernel had not told that it
// was replaced.
func (r *Region) Gone() bool { return r.gone.Load() }

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
