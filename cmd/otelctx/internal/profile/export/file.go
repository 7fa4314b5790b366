// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// filePerms restricts profiles to their owner, as perf does, since they may contain confidential data.
const filePerms = 0o600

// File writes profiles to a file. It is not safe for concurrent use.
//
// Operations may block on the file system or on the reader of a pipe. After an interrupt they give up: opening after
// openTime, and everything else when no data could be written for maxStall. The content is then lost, and the blocked
// goroutine and its descriptors leak.
type File struct {
	interrupted context.Context //nolint:containedctx // It applies to each call.
	path        string
	output      output
	written     atomic.Int64 // bytes written to output
	buffer      *bufio.Writer
	encoder     encoder
	spools      []*os.File // temporary files of the encoder
	err         error
	// stuck is set if the method do has given up on a call that is still blocked. From then on, only that call may use
	// output, buffer, encoder and spools.
	stuck bool
}

// maxStall is how long to wait after an interrupt while a file accepts no data. Writing a large file to a slow disk
// (fsync) takes some seconds.
const maxStall = 5 * time.Second

// encoder writes a file in a certain format. Each call of add writes further profiles, and close completes the file.
type encoder interface {
	add(data *profilespb.ProfilesData) error
	close() error
}

// output receives the content of a file. The last call is either finish, which completes the file, or discard.
type output interface {
	io.Writer
	finish() error
	discard() error
}

// openTime is how long opening a file may take after an interrupt. Opening an ordinary file takes much less time,
// and a pipe without a reader would block forever.
const openTime = time.Second

// openingLimit returns a channel that is closed when the duration openTime has passed since interrupted
// was done.
func openingLimit(interrupted context.Context) <-chan struct{} {
	limit := make(chan struct{})
	context.AfterFunc(interrupted, func() { time.AfterFunc(openTime, func() { close(limit) }) })
	return limit
}

// Create starts writing to the file at path, or to stdout if path is "-". It opens an existing file for writing as a
// shell does, so that the kernel's rules for links and other users' files apply, and so that errors occur before
// anything is recorded. If opening blocks, for example until a FIFO has a reader, Create gives up soon after
// interrupted is done.
//
// A regular file gets its content when it is closed. Until then a new file is empty, and an existing file keeps its
// content, even if the program is killed. Close replaces an existing file if possible. If the file is a symbolic
// link, has several hard links or belongs to another user, or if its directory does not allow new files, Close
// overwrites it in place. Files that are not regular, such as pipes, receive the profiles immediately. New and
// replaced files are accessible only to the caller (0600).
//
// kinds lists what the profiles measure: profile.TypeCPU, profile.TypeWall, profile.TypeAllocSpace or profile.TypeInuseSpace,
// which stand for the number of objects too. The first is what viewers show first, and folded stacks have nothing else. The
// default is CPU time.
func Create(interrupted context.Context, path string, format Format, stdout io.Writer, kinds ...string) (*File, error) {
	if len(kinds) == 0 {
		kinds = []string{profile.TypeCPU}
	}
	f := &File{interrupted: interrupted, path: path}
	opened := make(chan error, 1)
	var out output
	go func() {
		var err error
		out, err = open(path, stdout)
		opened <- err
	}()
	select {
	case err := <-opened:
		if err != nil {
			return nil, err
		}
	case <-openingLimit(interrupted):
		go func() {
			if <-opened == nil {
				_ = out.discard()
			}
		}()
		return nil, fmt.Errorf("interrupted while opening %s", path)
	}
	f.output = out
	f.buffer = bufio.NewWriter(&countingWriter{out, &f.written})
	err := f.do(func() (err error) {
		f.encoder, err = newEncoder(format, kinds, f.buffer, func() (*os.File, error) {
			spool, err := newSpool(filepath.Dir(path))
			if err == nil {
				f.spools = append(f.spools, spool)
			}
			return spool, err
		})
		return err
	})
	if err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	return f, nil
}

// countingWriter counts the bytes written.
type countingWriter struct {
	io.Writer
	written *atomic.Int64
}

func (w *countingWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	w.written.Add(int64(n))
	return n, err
}

// do calls what, which may block. After an interrupt it gives up if no data could be written for maxStall.
func (f *File) do(what func() error) error {
	if f.stuck {
		return f.err
	}
	done := make(chan error, 1)
	go func() { done <- what() }()
	select {
	case err := <-done:
		return err
	case <-f.interrupted.Done():
	}
	for before := int64(-1); ; {
		written := f.written.Load()
		if written == before {
			f.stuck = true
			f.err = fmt.Errorf("interrupted while %s accepted no data", f.path)
			return f.err
		}
		before = written
		select {
		case err := <-done:
			return err
		case <-time.After(maxStall):
		}
	}
}

// newEncoder returns an encoder for a format. An encoder that must write some data last keeps it in temporary files,
// which it creates with spool and the caller closes.
func newEncoder(format Format, kinds []string, to *bufio.Writer, spool func() (*os.File, error)) (encoder, error) {
	switch format {
	case Pprof:
		return newPprofEncoder(to, kinds), nil
	case OTLP:
		return &otlpEncoder{to: to}, nil
	case JSON:
		return newJSONEncoder(to, spool)
	case JSONLines:
		return &linesEncoder{to: jsonWriter{to}}, nil
	case Folded:
		return &foldedEncoder{to, kinds[0]}, nil
	case HTML:
		e := &htmlEncoder{to: to}
		for _, kind := range kinds {
			e.flames = append(e.flames, newFlame(kind, pageBounds))
		}
		return e, nil
	default:
		return nil, fmt.Errorf("no format %q", format)
	}
}

// Add writes profiles made by a profile.Builder. After an error the file cannot be completed.
func (f *File) Add(data *profilespb.ProfilesData) error {
	if f.err == nil {
		f.err = f.do(func() error { return f.encoder.add(data) })
	}
	return f.err
}

// Close completes the file. If Add has failed or Close itself fails, Close restores the file's previous state if
// possible. It cannot restore what it has already overwritten in place.
func (f *File) Close() error {
	if f.err == nil {
		f.err = f.do(func() error { return errors.Join(f.encoder.close(), f.buffer.Flush()) })
	}
	if f.err != nil {
		return errors.Join(f.err, f.Discard())
	}
	return f.do(func() error { return errors.Join(f.output.finish(), f.closeSpools()) })
}

// Discard restores the file's previous state, if possible. It is called instead of Close.
func (f *File) Discard() error {
	if f.stuck {
		return nil // The error has already been returned.
	}
	return f.do(func() error { return errors.Join(f.output.discard(), f.closeSpools()) })
}

func (f *File) closeSpools() (err error) {
	for _, spool := range f.spools {
		err = errors.Join(err, closeSpool(spool))
	}
	return err
}

// open opens the destination of a file's content.
func open(path string, stdout io.Writer) (output, error) {
	if path == "-" {
		return direct{Writer: stdout}, nil
	}
	created := true
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, filePerms) //nolint:gosec // G304: the user says where to write.
	if errors.Is(err, fs.ErrExist) {
		created = false
		if err := refusePlanted(path); err != nil {
			return nil, err
		}
		// With O_CREATE the kernel also refuses to open planted files, if it is configured to do so
		// (fs.protected_symlinks, fs.protected_regular, fs.protected_fifos).
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, filePerms) //nolint:gosec // G304
	}
	if err != nil {
		return nil, err
	}
	abandon := func(err error) error {
		err = errors.Join(err, f.Close())
		if created {
			err = errors.Join(err, os.Remove(path))
		}
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, abandon(err)
	}
	if !info.Mode().IsRegular() {
		return direct{Writer: f, file: f}, nil
	}
	if named, err := os.Lstat(path); err == nil && os.SameFile(named, info) && mayReplace(info) {
		if p, err := newPending(path); err == nil {
			_ = f.Close()
			return &replacing{pending: p, path: path, created: created}, nil
		}
	}
	spool, err := newSpool(filepath.Dir(path))
	if err != nil {
		return nil, abandon(err)
	}
	return &inPlace{File: spool, target: f, path: path, created: created}, nil
}

// newSpool returns a temporary file. If possible, the file has no name, so that it disappears with this process. If
// there is no directory for temporary files, as in minimal containers, the file is created in dir.
func newSpool(dir string) (*os.File, error) {
	f, err := os.CreateTemp("", "otelctx-")
	if err != nil {
		var here error
		if f, here = os.CreateTemp(dir, "otelctx-"); here != nil {
			return nil, errors.Join(err, here)
		}
	}
	_ = os.Remove(f.Name()) // fails on systems where open files cannot be removed
	return f, nil
}

func closeSpool(f *os.File) error {
	err := f.Close()
	_ = os.Remove(f.Name())
	return err
}

// direct writes to stdout, or to a file that is not regular.
type direct struct {
	io.Writer
	file *os.File // nil for stdout
}

func (d direct) finish() error {
	if d.file == nil {
		return nil
	}
	return d.file.Close()
}

func (d direct) discard() error { return d.finish() }

// replacing writes a new file in the same directory, which then replaces path.
type replacing struct {
	pending
	path    string
	created bool
}

// pending is a new file that has not been renamed yet.
type pending interface {
	io.Writer
	CloseAtomicallyReplace() error
	Cleanup() error
}

func (b *replacing) finish() error { return b.CloseAtomicallyReplace() }

func (b *replacing) discard() error {
	err := b.Cleanup()
	if b.created {
		err = errors.Join(err, os.Remove(b.path))
	}
	return err
}

// inPlace overwrites a file, target, that must not or cannot be replaced. Until finish is called, the embedded
// temporary file holds the new content.
type inPlace struct {
	*os.File
	target  *os.File
	path    string
	created bool
}

func (p *inPlace) finish() error {
	if err := p.overwrite(); err != nil {
		return errors.Join(err, p.discard())
	}
	return errors.Join(p.target.Close(), closeSpool(p.File))
}

// overwrite copies the new content to the target. It first extends the target if needed, so that a lack of space is
// noticed before any old content is overwritten.
func (p *inPlace) overwrite() error {
	size, err := p.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	info, err := p.target.Stat()
	if err != nil {
		return err
	}
	old := info.Size()
	if size > old {
		if err := p.copy(old, size); err != nil {
			return errors.Join(err, p.target.Truncate(old))
		}
	}
	if err := p.copy(0, min(old, size)); err != nil {
		return err
	}
	return p.target.Truncate(size)
}

// copy copies the new content from start to end to the same position in the target.
func (p *inPlace) copy(start, end int64) error {
	_, err := io.Copy(io.NewOffsetWriter(p.target, start), io.NewSectionReader(p.File, start, end-start))
	return err
}

func (p *inPlace) discard() error {
	err := errors.Join(p.target.Close(), closeSpool(p.File))
	if p.created {
		err = errors.Join(err, os.Remove(p.path))
	}
	return err
}
