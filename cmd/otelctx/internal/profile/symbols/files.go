// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/otelctx/otelctx/internal/elffile"
	"github.com/otelctx/otelctx/internal/procfs"
)

const (
	// maxFiles is the maximum number of open files of all users together. A single user may hold only as many files
	// as could still be opened, so that there is always room for other users. When a user holds more, the user's least
	// recently used file is released. A file that no user holds is closed, and its symbols are no longer available.
	maxFiles = 1024
	// maxTables is the maximum number of files whose symbols are kept in memory, at most about 16 MB for each. Files
	// that are being read may exceed it. Two are needed because an address may be looked up in a program and in its
	// debug file.
	maxTables = 2
	// maxNamed and maxNamedBytes limit the cache of lookups in a file. When either limit is reached, the cache is
	// cleared.
	maxNamed      = 1 << 14
	maxNamedBytes = 4 << 20
	// maxBusy is how long to wait while another goroutine reads a file. If that takes longer, the file system
	// probably does not respond.
	maxBusy = 100 * time.Millisecond
)

// Files holds the files that processes have mapped. It holds each file once, even if several processes map it. It
// is safe for concurrent use.
type Files struct {
	// unnamed is set if only build ids are needed. Files do not stay open then.
	unnamed bool

	missed atomic.Pointer[time.Time] // the argument of the last call of Missed
	misses atomic.Uint64             // the number of calls of Missed
	untold atomic.Bool               // set by Untold

	mu    sync.Mutex
	byID  map[fileID]*file
	users map[int][]*file // the files of each user, most recently used last
	// processes holds the open processes by id.
	processes map[int][]*Process
	// tables lists the files that hold symbols, the most recently used last.
	tables []*file
}

// Maps reports whether a process is open, so that f needs the kernel's reports of its mappings.
func (f *Files) Maps(pid int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.processes[pid]) > 0
}

// Mapped records the kernel's report that a process has mapped code: m replaces the previous mappings at its
// addresses. Mappings that are not reported are found by the next [Process.Refresh]. Times need not be in order.
func (f *Files) Mapped(pid int, at time.Time, m procfs.Mapping) {
	f.mu.Lock()
	processes := slices.Clone(f.processes[pid])
	f.mu.Unlock()
	for _, p := range processes {
		p.mapped(at, m)
	}
}

// Missed records that processes may have mapped code before the given time without a call of [Files.Mapped].
func (f *Files) Missed(before time.Time) {
	f.missed.Store(&before)
	f.misses.Add(1)
}

// Untold records that [Files.Mapped] is not called for every mapping. No result is certain from then on.
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

// fileID identifies a file and its version.
type fileID struct {
	device, inode uint64
	size          int64
	changed       int64 // ctime in nanoseconds
}

// file is an open file with the results of previous lookups.
type file struct {
	files *Files
	id    fileID
	// holders is the number of users that hold the file. It is guarded by files.mu.
	holders int
	// These fields do not change. kind is used only if Files.unnamed is set: it is then the frame type of all code in
	// the file.
	gnuBuildID, goBuildID, htlHash, kind string
	goTableUnreadable                    bool
	// lacks is used to find the debug file. It is nil if this file has symbols itself or is not ELF.
	lacks *lacking

	// reading is a lock held by the goroutine that reads the file. It is a channel, so that waiting for it can
	// time out.
	reading chan struct{}
	closer  io.Closer        // nil for data in memory
	elf     *elffile.File    // nil if the file is closed, unreadable or not ELF
	golang  *elffile.GoTable // nil if missing
	symbols *elfSymbols
	named   map[uint64]named
	held    int // approximate bytes of named
}

// named is the result of looking up an address.
type named struct {
	lines []Line
	kind  string
}

// NewFiles returns an empty set of files. Close releases them.
func NewFiles() *Files {
	return &Files{byID: map[fileID]*file{}, users: map[int][]*file{}, processes: map[int][]*Process{}}
}

// NewUnnamedFiles is like NewFiles, for callers that need build ids but no names. When a region is attached, only the
// build ids of its file are read.
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

// open returns the file behind a region, or nil if there is none or it cannot be read.
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

// openNamed returns the file that handle refers to, and makes the user hold it. It opens the file only if it is not
// known yet. It returns nil if the file cannot be read.
func (f *Files) openNamed(user int, handle *os.File, id fileID) *file {
	f.mu.Lock()
	known := f.byID[id]
	if known != nil {
		f.hold(user, known)
	}
	f.mu.Unlock()
	if known != nil {
		return known
	}
	content, err := reopen(handle)
	if err != nil {
		return nil
	}
	if f.unnamed {
		defer func() { _ = content.Close() }() // read only
	}
	return f.add(user, newFile(f, id, content, content))
}

// add adds o and makes the user hold it. If the same file is already known, add closes o and uses the known file. It
// returns the file that the user holds.
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

// hold makes a user hold a file. If the user then holds too many, hold releases the least recently used one. The
// caller must have locked f.mu.
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

// use moves o to the end of a list, or adds it there, and returns the first file of the list.
func use(list *[]*file, o *file) *file {
	if i := slices.Index(*list, o); i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	*list = append(*list, o)
	return (*list)[0]
}

// newFile reads the headers of a file. If only build ids are needed, it retains nothing else.
func newFile(f *Files, id fileID, content io.ReaderAt, closer io.Closer) *file {
	o := &file{files: f, id: id, reading: make(chan struct{}, 1)}
	all := elffile.Whole(content)
	o.htlHash = htlHash(all, id.size)
	e, err := elffile.Parse(all)
	if err == nil {
		o.gnuBuildID, o.goBuildID = e.BuildIDs()
	}
	if f.unnamed {
		if err == nil {
			o.kind = TypeNative // Without the tables, Go code cannot be distinguished from C code.
		}
		return o
	}
	o.closer, o.named = closer, map[uint64]named{}
	if err != nil {
		return o // The file is not ELF and has no symbols.
	}
	o.elf, o.lacks = e, lacks(e)
	o.golang, err = e.GoTable()
	o.goTableUnreadable = errors.Is(err, elffile.ErrUnreadableGoTable)
	return o
}

// close closes the file as soon as no goroutine reads it. Results remain valid.
func (o *file) close() {
	go func() {
		o.reading <- struct{}{}
		o.elf, o.golang, o.symbols, o.named = nil, nil, nil, nil
		if o.closer != nil {
			_ = o.closer.Close() // read only
		}
		<-o.reading
	}()
}

// vdso is the path of the code that the kernel maps into each process.
const vdso = "[vdso]"

// kernelUser stands for the kernel as the user that holds the vDSO.
const kernelUser = -1

// ownVDSO returns the vDSO of this process. All processes of an architecture have the same vDSO, but only this
// process's own memory can be trusted.
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
	o.htlHash = htlHash(elffile.Whole(bytes.NewReader(code)), int64(len(code)))
	return f.add(kernelUser, o)
}

// locate returns the functions at an offset of the file, and the frame type.
func (o *file) locate(offset uint64) ([]Line, string) {
	if o.files.unnamed {
		return nil, o.kind
	}
	return o.find(offset, func() (uint64, bool) { return o.elf.Address(offset) })
}

// locateAddress is like locate, for a virtual address in the file.
func (o *file) locateAddress(address uint64) ([]Line, string) {
	const isAddress = 1 << 63 // distinguishes addresses from offsets in the cache
	return o.find(address|isAddress, func() (uint64, bool) { return address, true })
}

// read locks the file for reading, and returns false if that takes longer than maxBusy. The caller unlocks
// it by receiving from o.reading.
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
	// Try once more: if both channels were ready, select may have chosen the timer.
	select {
	case o.reading <- struct{}{}:
		return true
	default:
		return false
	}
}

// find returns the functions at an address, and the frame type. It caches the result under key, and calls address
// only if there is no result yet. It returns nothing if the file is closed or not ELF, or if the method read fails.
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
	if a, ok := address(); ok {
		n.lines, n.kind = o.lookup(a)
	}
	o.keep(key, n)
	return n.lines, n.kind
}

func (o *file) keep(key uint64, n named) {
	const entry = 60 // approximate bytes
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

// lookup returns the functions at a virtual address in the file, and the frame type.
func (o *file) lookup(address uint64) ([]Line, string) {
	if t := o.golang; t != nil && t.Contains(address) {
		lines, _ := t.Lookup(address)
		return lines, TypeGo
	}
	o.files.useSymbols(o)
	if o.symbols == nil {
		o.symbols = readSymbols(o.elf)
	}
	if name, ok := o.symbols.lookup(address); ok {
		return []Line{{Function: name}}, TypeNative
	}
	return nil, TypeNative
}

// useSymbols records that the symbols of o are used. If more than maxTables files have symbols in memory, it drops
// the symbols of the least recently used files that are not being read.
func (f *Files) useSymbols(o *file) {
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
			i++ // The file is being read, so drop its symbols next time.
		}
	}
}
