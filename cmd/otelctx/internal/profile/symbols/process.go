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
	// maxRegions is the maximum number of executable mappings known for a process. Mappings of files take
	// precedence, because only a perf map can name code in other mappings.
	maxRegions = 1 << 14
	// maxChanges is the maximum number of reported mappings that are tracked for a process between two scans. After
	// more reports, no address in the process can be named until the next scan.
	maxChanges = 1 << 12
)

// Process tracks the executable mappings of a process. It is safe for concurrent use.
type Process struct {
	pid   int
	user  int
	proc  *procfs.Process
	files *Files
	perf  perfMap
	// refresh is held while the mappings are scanned.
	refresh sync.Mutex
	// generation increases whenever the results of Find and Regions change.
	generation atomic.Uint64
	// leftOut is the number of executable mappings beyond maxRegions.
	leftOut atomic.Int64

	mu       sync.Mutex
	timeline timeline
	// changes is the number of new mappings that the kernel has reported since the last scan.
	changes int
	// scanned is the start of the last scan. ignored is the time of the last report that exceeded maxChanges.
	scanned, ignored time.Time
}

// Region is an executable mapping of a process.
type Region struct {
	process      *Process
	major, minor uint32 // device numbers of inode
	inode        uint64
	mapping      Mapping // without build ids

	wanted     atomic.Bool
	attachOnce sync.Once
	attached   atomic.Pointer[attached]
	// gone is set if a scan no longer found the region, and the kernel's reports may have been incomplete. The region
	// may then have been replaced at any time before the scan.
	gone atomic.Bool
}

// attached holds what [Region.Attach] has found.
type attached struct {
	file    *file      // nil if it is not readable
	debug   *debugFile // nil if there is none
	mapping *Mapping   // with build ids
}

// Open scans the mappings of a process. It requires permission to read them; the error wraps
// procfs.ErrProcessGone if the process does not exist, and may wrap fs.ErrPermission. Open may block on the
// process. Close releases the result.
func (f *Files) Open(pid int) (*Process, error) {
	proc, err := procfs.Host().Process(pid)
	if err != nil {
		return nil, err
	}
	p := &Process{pid: pid, proc: proc, files: f, perf: perfMap{reading: make(chan struct{}, 1)}}
	f.register(p) // Register before the first scan, so that no report is missed.
	if p.user, err = procfs.Host().User(pid); err == nil {
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

// Close releases p. Locations remain valid, and attached regions can still be symbolized.
func (p *Process) Close() error {
	p.files.unregister(p)
	p.closePerfMap()
	return p.proc.Close()
}

// Refresh scans the current mappings. Unchanged regions keep their identity. On error, or if the process
// has released its memory, nothing changes. It may block on the process.
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
		return nil // The process is ending.
	}
	room := maxRegions - len(ofFiles)
	if len(anonymous) > room {
		leftOut += len(anonymous) - room
		anonymous = anonymous[:room]
	}
	found := slices.Concat(ofFiles, anonymous)
	slices.SortFunc(found, func(a, b *Region) int { return cmp.Compare(a.mapping.Start, b.mapping.Start) })
	p.leftOut.Store(int64(leftOut))

	p.mu.Lock()
	defer p.mu.Unlock()
	certain := p.certain()
	p.timeline.replace(found, began, func(r *Region) { r.gone.Store(!certain) })
	p.scanned, p.changes = began, 0
	p.generation.Add(1)
	return nil
}

// certain reports whether the kernel has reported all mappings made since the last scan. The caller holds p.mu.
func (p *Process) certain() bool {
	missed := p.files.missed.Load()
	return !p.files.untold.Load() && (missed == nil || missed.Before(p.scanned)) && (p.ignored.IsZero() || p.ignored.Before(p.scanned))
}

// LeftOut returns the number of executable mappings that the last scan left out because there were too many. Code in
// them has no names.
func (p *Process) LeftOut() int { return int(p.leftOut.Load()) }

// Attach calls [Region.Attach] for the regions with the lowest addresses, at most limit of them, if [Region.Want]
// returns true.
func (p *Process) Attach(limit int) {
	p.mu.Lock()
	first := slices.Clone(p.timeline.now[:min(len(p.timeline.now), limit)])
	p.mu.Unlock()
	for _, s := range first {
		if s.region.Want() {
			s.region.Attach()
		}
	}
}

// Find returns the region that contains an address now, or nil.
func (p *Process) Find(address uint64) *Region {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.timeline.find(address, time.Now())
}

// Generation returns a number that changes whenever the results of [Process.Regions] may change, except after
// [Files.Untold].
func (p *Process) Generation() uint64 { return p.generation.Load() + p.files.misses.Load() }

// Regions returns, for each address, the region that contained it at the given time, or nil if that is unknown. If
// certain is false, regions for which [Region.Gone] returns true may have been replaced before that time.
func (p *Process) Regions(addresses []uint64, at time.Time) (regions []*Region, certain bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	regions = make([]*Region, len(addresses))
	for i, a := range addresses {
		regions[i] = p.timeline.find(a, at)
	}
	return regions, p.certain()
}

// mapped processes the kernel's report that the process made the mapping m at the given time.
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

// same reports whether r and o are the same mapping. It does not compare paths, because a path depends on the
// process's root directory, and a file may be renamed.
func (r *Region) same(o *Region) bool {
	return r.mapping.Start == o.mapping.Start && r.mapping.Limit == o.mapping.Limit && r.mapping.FileOffset == o.mapping.FileOffset &&
		r.inode == o.inode && r.major == o.major && r.minor == o.minor
}

// continues reports whether r and o have the same contents at every address that is in both.
func (r *Region) continues(o *Region) bool {
	return r.inode == o.inode && r.major == o.major && r.minor == o.minor &&
		(r.anonymous() || r.mapping.Start-r.mapping.FileOffset == o.mapping.Start-o.mapping.FileOffset)
}

// anonymous reports whether the region has no file.
func (r *Region) anonymous() bool { return r.inode == 0 }

// Gone reports whether the region disappeared at an unknown time: a scan no longer found it, and the kernel's reports
// may have been incomplete.
func (r *Region) Gone() bool { return r.gone.Load() }

// Want reports whether the caller should attach the region. It returns true once, and once more after each call of
// [Region.Unwant], until the region is attached.
func (r *Region) Want() bool { return !r.Attached() && r.wanted.CompareAndSwap(false, true) }

// Attach opens the file of the region, once: later calls do nothing, even if that failed. It must be called while the
// process exists, and may block on the process or a file system. If another goroutine is attaching the region, Attach
// waits for it.
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
		mapping.GoTableUnreadable = a.file.goTableUnreadable
	}
	a.mapping = &mapping
	r.attached.Store(a)
}

// Locate symbolizes the address of an instruction in the region. Locate never returns nil. It may block on a
// file system. Code compiled at run time has no lines until [Process.NameCompiled] sets them.
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

// Compiled reports whether code in the region was presumably compiled at run time, because it is in anonymous memory
// or in a memfd.
func (r *Region) Compiled() bool {
	return r.inode == 0 && !strings.HasPrefix(r.mapping.Path, "[v") || strings.HasPrefix(r.mapping.Path, "/memfd:")
}

// Unwant makes [Region.Want] return true once more, unless the region has been attached.
func (r *Region) Unwant() { r.wanted.Store(false) }

// PID returns the id of the region's process.
func (r *Region) PID() int { return r.process.pid }
