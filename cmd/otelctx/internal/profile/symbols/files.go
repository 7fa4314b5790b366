// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bytes"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/otelctx/otelctx/internal/procfs"
)

const (
	// maxFiles bounds the open files. Users share it: one may hold as many as are free, so that there is
	// room for others. Beyond that a user loses the file that it has not asked for the longest. A file
	// that no user holds is closed, and names nothing any more.
	maxFiles = 1024
	// maxTables bounds the files of which the symbols are held: about 16 MB each at most. An
	// address may be looked up in a program and in its debug file.
	maxTables = 2
	// maxNamed and maxNamedBytes bound the addresses of a file whose names are kept.
	// Beyond one of them all are forgotten, and found again when asked for.
	maxNamed      = 1 << 14
	maxNamedBytes = 4 << 20
	// maxBusy is how long to wait for a file that somebody else reads: who waits longer
	// waits for a file system that does not answer.
	maxBusy = 100 * time.Millisecond
)

// Files are the files that processes have mapped, each one once, however often and by how
// many processes it is mapped. It is safe for concurrent use.
type Files struct {
	// unnamed says that only build ids are read of files, and that none stays open.
	unnamed bool

	// missed is when something may have been mapped last that was not told. misses counts such times.
	missed atomic.Pointer[time.Time]
	misses atomic.Uint64
	untold atomic.Bool

	mu    sync.Mutex
	byID  map[fileID]*file
	users map[int][]*file // those that a user holds; the one used last is the last
	// processes are those that are open, by their ids.
	processes map[int][]*Process
	// tables are the files that hold symbols, likewise.
	tables []*file
}

// Maps reports whether what a process maps is of interest to f.
func (f *Files) Maps(pid int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.processes[pid]) > 0
}

// Mapped notes that a process has mapped code, as the kernel tells: m replaces what was there. Without it
// that is found at the next [Process.Refresh]. The time may be before the last one.
func (f *Files) Mapped(pid int, at time.Time, m procfs.Mapping) {
	f.mu.Lock()
	processes := slices.Clone(f.processes[pid])
	f.mu.Unlock()
	for _, p := range processes {
		p.mapped(at, m)
	}
}

// Missed notes that processes may have mapped code before a time without a call of [Files.Mapped].
func (f *Files) Missed(before time.Time) {
	f.missed.Store(&before)
	f.misses.Add(1)
}

// Untold notes that [Files.Mapped] is not called for all that processes map.
func (f *Files) Untold() { f.untold.Store(true) }

func (f *Files) register(p *Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processes[p.pid] = append(f.processes[p.pid], p)
}

func (f *Files) unregister(p *Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	others := slices.DeleteFunc(f.processes[p.pid], func(o *Process) bool { return o == p })
	if f.processes[p.pid] = others; len(others) == 0 {
		delete(f.processes, p.pid)
	}
}

// fileID tells files apart, also one that was written anew in its place.
type fileID struct {
	device, inode uint64
	size          int64
	changed       int64 // ctime in nanoseconds
}

// file is a file, opened, with what has been found in it.
type file struct {
	files *Files
	id    fileID
	// holders is how many users hold the file. It is guarded by files.mu.
	holders int
	// The build ids do not change, nor does kind: the type of all that is in the file where
	// nothing is named.
	gnuBuildID, goBuildID, htlHash, kind string
	// lacks says what is known of the file that may name the functions, if this one cannot.
	lacks *lacking

	// reading is held by the goroutine that reads the file. It is a channel, as one that waits may
	// give up.
	reading chan struct{}
	closer  io.Closer // nil for what is in memory
	elf     *elfFile  // nil if it is none, or cannot be read, or is closed
	golang  *goTable  // nil if there is none
	symbols *elfSymbols
	named   map[uint64]named
	held    int // about how many bytes named takes
}

// named is what an address is in.
type named struct {
	lines []Line
	kind  string
}

// NewFiles returns none yet. Close releases them.
func NewFiles() *Files {
	return &Files{byID: map[fileID]*file{}, users: map[int][]*file{}, processes: map[int][]*Process{}}
}

// NewUnnamedFiles is NewFiles for callers that want build ids and no names. Of files nothing else is
// read, and only when they are attached.
func NewUnnamedFiles() *Files {
	f := NewFiles()
	f.unnamed = true
	return f
}

// Close closes all files.
func (f *Files) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.byID {
		o.close()
	}
	f.byID, f.users, f.tables = map[fileID]*file{}, map[int][]*file{}, nil
}

// open returns the file behind a region, or nil if it cannot be read.
func (f *Files) open(r *Region) *file {
	if r.mapping.Path == vdso {
		return f.ownVDSO()
	}
	if r.inode == 0 {
		return nil
	}
	path, id, err := r.process.openFile(r)
	if err != nil {
		return nil
	}
	defer func() { _ = path.Close() }()
	return f.openNamed(r.process.user, path, id)
}

// openNamed returns the file that path names, for a user. It is nil if it cannot be read.
func (f *Files) openNamed(user int, path *os.File, id fileID) *file {
	f.mu.Lock()
	known := f.byID[id]
	if known != nil {
		f.hold(user, known)
	}
	f.mu.Unlock()
	if known != nil {
		return known
	}
	content, err := reopen(path)
	if err != nil {
		return nil
	}
	if f.unnamed {
		defer func() { _ = content.Close() }() // nothing was written
	}
	return f.add(user, newFile(f, id, content, content))
}

// add keeps a file for a user, unless it is known by now.
func (f *Files) add(user int, o *file) *file {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.byID[o.id]; known != nil {
		o.close()
		o = known
	} else {
		f.byID[o.id] = o
	}
	f.hold(user, o)
	return o
}

// hold keeps a file open for a user. f.mu is held.
func (f *Files) hold(user int, o *file) {
	held := f.users[user]
	before := len(held)
	oldest := use(&held, o)
	o.holders += len(held) - before
	if len(held) > maxFiles-len(f.byID) {
		held = held[1:]
		if oldest.holders--; oldest.holders == 0 {
			delete(f.byID, oldest.id)
			oldest.close()
		}
	}
	f.users[user] = held
}

// use makes o the last of a list, and returns the first.
func use(list *[]*file, o *file) *file {
	if i := slices.Index(*list, o); i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	*list = append(*list, o)
	return (*list)[0]
}

func newFile(f *Files, id fileID, content io.ReaderAt, closer io.Closer) *file {
	if f.unnamed {
		return newUnnamedFile(f, id, content)
	}
	o := &file{files: f, id: id, reading: make(chan struct{}, 1), closer: closer, named: map[uint64]named{}}
	all := whole(content)
	o.htlHash = htlHash(all, id.size)
	e, err := parseELF(all)
	if err != nil {
		return o // a file of another kind, whose code nothing names
	}
	o.elf = e
	o.gnuBuildID, o.goBuildID = e.buildIDs()
	o.lacks = e.lacks()
	if t, err := e.goTable(); err == nil {
		o.golang = t
	}
	return o
}

// newUnnamedFile reads the build ids, and keeps nothing else.
func newUnnamedFile(f *Files, id fileID, content io.ReaderAt) *file {
	o := &file{files: f, id: id, reading: make(chan struct{}, 1)}
	all := whole(content)
	o.htlHash = htlHash(all, id.size)
	if e, err := parseELF(all); err == nil {
		o.gnuBuildID, o.goBuildID = e.buildIDs()
		o.kind = TypeNative // Which part of a Go program is C's only its tables tell.
	}
	return o
}

// close closes the file when nobody reads it. What was found in it stays.
func (o *file) close() {
	go func() {
		o.reading <- struct{}{}
		o.elf, o.golang, o.symbols, o.named = nil, nil, nil, nil
		if o.closer != nil {
			_ = o.closer.Close() // nothing was written
		}
		<-o.reading
	}()
}

// vdso is the path of the code that the kernel maps into each process.
const vdso = "[vdso]"

// kernelUser holds what is the kernel's.
const kernelUser = -1

// ownVDSO returns the vDSO of this process: the kernel has one for all of an architecture.
// What others have mapped may be what they have written there.
func (f *Files) ownVDSO() *file {
	id := fileID{size: -1}
	f.mu.Lock()
	known := f.byID[id]
	f.mu.Unlock()
	if known != nil {
		return known
	}
	code, err := readOwnVDSO()
	if err != nil {
		return nil
	}
	o := newFile(f, id, bytes.NewReader(code), nil)
	o.htlHash = htlHash(whole(bytes.NewReader(code)), int64(len(code)))
	return f.add(kernelUser, o)
}

// locate returns what is at an offset of the file, and its type.
func (o *file) locate(offset uint64) ([]Line, string) {
	if o.files.unnamed {
		return nil, o.kind
	}
	return o.find(offset, func() (uint64, bool) { return o.elf.address(offset) })
}

// locateAddress is locate for an address in the file's own numbers.
func (o *file) locateAddress(address uint64) ([]Line, string) {
	const isAddress = 1 << 63 // No offset is as large.
	return o.find(address|isAddress, func() (uint64, bool) { return address, true })
}

// read waits until nobody else reads the file, but not for longer than maxBusy. Then the caller
// may read it, until it takes from o.reading.
func (o *file) read() bool {
	select {
	case o.reading <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(maxBusy)
	defer timer.Stop()
	select {
	case o.reading <- struct{}{}:
		return true
	case <-timer.C:
	}
	// The kernel may have taken the processor away meanwhile: then both were ready, and select
	// chose any.
	select {
	case o.reading <- struct{}{}:
		return true
	default:
		return false
	}
}

// find returns what is at an address, and its type. What it finds is kept by the key.
func (o *file) find(key uint64, address func() (uint64, bool)) ([]Line, string) {
	if !o.read() {
		return nil, ""
	}
	defer func() { <-o.reading }()
	if o.elf == nil {
		return nil, ""
	}
	if n, ok := o.named[key]; ok {
		return n.lines, n.kind
	}
	n := named{kind: TypeNative}
	if at, ok := address(); ok {
		n.lines, n.kind = o.lookup(at)
	}
	o.keep(key, n)
	return n.lines, n.kind
}

// keep keeps n for the next time.
func (o *file) keep(key uint64, n named) {
	const entry = 60 // bytes, about
	size := entry + Bytes(n.lines)
	if len(o.named) >= maxNamed || o.held+size > maxNamedBytes {
		o.forget()
	}
	o.held += size
	o.named[key] = n
}

func (o *file) forget() {
	clear(o.named)
	o.held = 0
}

// lookup returns the functions at address, in the file's own numbers, and their type.
func (o *file) lookup(address uint64) ([]Line, string) {
	if t := o.golang; t != nil && t.text <= address && address < t.limit {
		lines, _ := t.lookup(address)
		return lines, TypeGo
	}
	o.files.holds(o)
	if o.symbols == nil {
		o.symbols = o.elf.readSymbols()
	}
	if name, ok := o.symbols.lookup(address); ok {
		return []Line{{Function: name}}, TypeNative
	}
	return nil, TypeNative
}

// holds notes that a file holds its symbols, and lets another one forget its own.
func (f *Files) holds(o *file) {
	f.mu.Lock()
	defer f.mu.Unlock()
	use(&f.tables, o)
	for i := 0; len(f.tables) > maxTables && f.tables[i] != o; {
		oldest := f.tables[i]
		select {
		case oldest.reading <- struct{}{}:
			oldest.symbols = nil
			<-oldest.reading
			f.tables = slices.Delete(f.tables, i, i+1)
		default:
			i++ // It is being read: another time.
		}
	}
}
