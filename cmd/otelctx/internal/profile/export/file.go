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
)

// filePerms are those of profiles: they show what others may not know, as perf's do.
const filePerms = 0o600

// File is where profiles are written to. It is not safe for concurrent use.
//
// Whatever waits for the file system, or for who reads a pipe, ends after an interrupt: opening at once, and
// writing when nothing could be written for maxStall. The file is lost then, and so are the goroutine and the
// descriptors that still wait.
type File struct {
	interrupted context.Context //nolint:containedctx // It is about each call.
	path        string
	output      output
	written     atomic.Int64 // bytes, to the output
	buffer      *bufio.Writer
	encoder     encoder
	spools      []*os.File // of the encoder
	err         error
	// stuck says that a call still waits, to which the rest of the file belongs.
	stuck bool
}

// maxStall is how long a file that takes nothing is waited for after an interrupt. Synchronizing a large file
// with a slow disk takes some seconds.
const maxStall = 5 * time.Second

// encoder writes profiles, one behind the other, so that the whole is one file.
type encoder interface {
	add(data *profilespb.ProfilesData) error
	close() error
}

// output is what a file's content goes to. Either finish or discard is called.
type output interface {
	io.Writer
	finish() error
	discard() error
}

// Create begins to write a file, or to stdout if path is "-". It opens what is there as a
// shell does, before there is anything to lose. So the kernel's rules for links and files
// of other users hold. When interrupted is done, it no longer waits, for the reader of a FIFO for example.
//
// A regular file appears complete when it is closed, and one that was there stays until
// then. One that is a link, has more names, or is another user's is written over at that
// moment; the others are replaced. What is no regular file, such as a pipe, is written to
// as profiles come. New files are the caller's alone (0600).
func Create(interrupted context.Context, path string, format Format, stdout io.Writer) (*File, error) {
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
	case <-interrupted.Done():
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
		f.encoder, err = newEncoder(format, f.buffer, func() (*os.File, error) {
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

// countingWriter counts what is written.
type countingWriter struct {
	io.Writer
	written *atomic.Int64
}

func (w *countingWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	w.written.Add(int64(n))
	return n, err
}

// do does something that may wait. After an interrupt it gives that up when nothing could be written for
// maxStall.
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
			f.err = fmt.Errorf("interrupted while %s took nothing", f.path)
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

// newEncoder returns an encoder. What has to wait is in files that spool makes, and the caller
// closes.
func newEncoder(format Format, to *bufio.Writer, spool func() (*os.File, error)) (encoder, error) {
	switch format {
	case Pprof:
		return newPprofEncoder(to), nil
	case OTLP:
		return &otlpEncoder{to: to}, nil
	case JSON:
		return newJSONEncoder(to, spool)
	case JSONLines:
		return &linesEncoder{to: jsonWriter{to}}, nil
	case Folded:
		return &foldedEncoder{to: to}, nil
	case HTML:
		return &htmlEncoder{to: to, flame: newFlame(pageBounds)}, nil
	default:
		return nil, fmt.Errorf("no format %q", format)
	}
}

// Add writes profiles, which a profile.Builder has made. After an error the file cannot be
// completed.
func (f *File) Add(data *profilespb.ProfilesData) error {
	if f.err == nil {
		f.err = f.do(func() error { return f.encoder.add(data) })
	}
	return f.err
}

// Close completes the file. After an error of Add or its own it is as if there had been no
// file.
func (f *File) Close() error {
	if f.err == nil {
		f.err = f.do(func() error { return errors.Join(f.encoder.close(), f.buffer.Flush()) })
	}
	if f.err != nil {
		return errors.Join(f.err, f.Discard())
	}
	return f.do(func() error { return errors.Join(f.output.finish(), f.closeSpools()) })
}

// Discard removes what was written, if that is possible. Call it instead of Close.
func (f *File) Discard() error {
	if f.stuck {
		return nil // The error has been returned.
	}
	return f.do(func() error { return errors.Join(f.output.discard(), f.closeSpools()) })
}

func (f *File) closeSpools() (err error) {
	for _, spool := range f.spools {
		err = errors.Join(err, closeSpool(spool))
	}
	return err
}

// open returns what the content of a file goes to.
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
		// With O_CREATE the kernel refuses it too, at the moment of opening, where it is set
		// to (fs.protected_symlinks, fs.protected_regular, fs.protected_fifos).
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
			return &beside{pending: p, path: path, created: created}, nil
		}
	}
	spool, err := newSpool(filepath.Dir(path))
	if err != nil {
		return nil, abandon(err)
	}
	return &inPlace{File: spool, target: f, path: path, created: created}, nil
}

// newSpool returns a file for what has to wait. Where that can be it has no name, and so ends with
// this process. It is in dir if there is no directory for temporary files, as in small containers.
func newSpool(dir string) (*os.File, error) {
	f, err := os.CreateTemp("", "otelctx-")
	if err != nil {
		var here error
		if f, here = os.CreateTemp(dir, "otelctx-"); here != nil {
			return nil, errors.Join(err, here)
		}
	}
	_ = os.Remove(f.Name()) // what can only be done afterwards elsewhere
	return f, nil
}

func closeSpool(f *os.File) error {
	err := f.Close()
	_ = os.Remove(f.Name())
	return err
}

// direct writes to what is no regular file.
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

// beside writes a file beside another one, whose place it takes.
type beside struct {
	pending
	path    string
	created bool
}

// pending is a file that has no place yet.
type pending interface {
	io.Writer
	CloseAtomicallyReplace() error
	Cleanup() error
}

func (b *beside) finish() error { return b.CloseAtomicallyReplace() }

func (b *beside) discard() error {
	err := b.Cleanup()
	if b.created {
		err = errors.Join(err, os.Remove(b.path))
	}
	return err
}

// inPlace holds what will be written to a file that must not be replaced.
type inPlace struct {
	*os.File
	target  *os.File
	path    string
	created bool
}

func (p *inPlace) finish() error {
	if err := p.over(); err != nil {
		return errors.Join(err, p.discard())
	}
	return errors.Join(p.target.Close(), closeSpool(p.File))
}

// over writes over the target. What goes beyond its end is written first: if there is no space, the
// target is as it was.
func (p *inPlace) over() error {
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

// copy writes a part of what is held to the same place of the target.
func (p *inPlace) copy(from, to int64) error {
	_, err := io.Copy(io.NewOffsetWriter(p.target, from), io.NewSectionReader(p.File, from, to-from))
	return err
}

func (p *inPlace) discard() error {
	err := errors.Join(p.target.Close(), closeSpool(p.File))
	if p.created {
		err = errors.Join(err, os.Remove(p.path))
	}
	return err
}
