// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/tlsvar"
	"github.com/otelctx/otelctx/internal/wire"
)

// ThreadContexts are the thread contexts of OTEP 4947 that a process publishes through the
// thread-local variable otel_thread_ctx_v1.
type ThreadContexts struct {
	// Schema is the process's threadlocal.schema_version: tlsdesc_v1_dev or tls_v1.
	Schema string
	// Keys lists the names of attributes by key index.
	Keys []string
	// Variables lists the usable definitions of the variable. Unresolved is the reason why other
	// definitions cannot be used.
	Variables  []ThreadVariable
	Unresolved error
	// Threads lists all threads of the process, at most 131,072.
	Threads []ThreadContext
}

// ThreadVariable is one definition of the thread-local variable.
type ThreadVariable struct {
	// Module is the path of the executable or library that defines the variable. Model is the
	// variable's access model: local-exec, initial-exec or global-dynamic.
	Module, Model string
}

// ThreadContext is the context of one thread.
type ThreadContext struct {
	// TID is the thread's id in the caller's PID namespace, OwnTID its id in the namespace of the
	// process.
	TID, OwnTID int
	// Record is the address of the record in the process, 0 if the thread has none.
	Record uint64
	// Encoded is the record: 28 bytes, followed by its attributes. It belongs to the caller.
	Encoded []byte
	// Span is the decoded record. It is nil if there is no record, if the record is invalid or has
	// no ids, or if Err is set.
	Span *ThreadSpan
	// Err is the reason why the thread could not be read, or nil.
	Err error
}

// threadContextVariable is the symbol defined by OTEP 4947.
const threadContextVariable = "otel_thread_ctx_v1"

// errChanging means that a record was different at each read.
var errChanging = fmt.Errorf("%w: the record changed at each read", ErrBusy)

// ThreadContexts returns the thread contexts of the process, if its threadlocal.schema_version is
// tlsdesc_v1_dev or tls_v1 (OTEP 4947). [Process.Threads] returns their spans like those of Go
// services.
//
// Each thread is stopped once, for tens of microseconds, to learn its thread pointer; afterwards
// records are read while it runs. A record is returned only if two reads of the pointer and of the
// whole record are equal and the record is valid, so a record that is being written is never
// returned. The OTEP only provides for reading stopped threads, but stopping each thread for every
// read would keep interrupting the service's system calls with EINTR.
//
// The error wraps [ErrNoThreadContext] if the process publishes no such contexts, and otherwise is
// one of those of [Process.ProcessContext]. It is safe for concurrent use.
func (p *Process) ThreadContexts(ctx context.Context) (*ThreadContexts, error) {
	_, message, contextErr, err := p.published(ctx)
	if err == nil && message == nil {
		err = contextErr
	}
	if err != nil {
		return nil, err
	}
	a := newAdvertisement(message.message())
	schema, err := a.text(wire.KeySchemaVersion)
	if err != nil {
		return nil, p.error(fmt.Errorf("%w: %w", ErrNoThreadContext, err))
	}
	if schema != wire.SchemaTLSDevelopment && schema != wire.SchemaTLS {
		return nil, p.error(fmt.Errorf("%w: schema %q", ErrNoThreadContext, schema))
	}
	out := &ThreadContexts{Schema: schema, Keys: a.keys()}
	variables, err := p.threadVariables(ctx, message.PublishedAtNS)
	if err != nil && len(variables) == 0 && !errors.Is(err, tlsvar.ErrUnresolved) {
		return nil, err
	}
	out.Unresolved = err
	for _, v := range variables {
		out.Variables = append(out.Variables, ThreadVariable{Module: v.Module, Model: string(v.Model)})
	}
	threads, err := p.listThreads(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range threads {
		if err := ctx.Err(); err != nil {
			return nil, p.error(err)
		}
		c := ThreadContext{TID: t.TID, OwnTID: t.OwnTID}
		c.Record, c.Encoded, c.Err = p.threadRecord(t.TID, variables)
		if errors.Is(c.Err, procfs.ErrProcessGone) {
			continue
		}
		if c.Err == nil {
			c.Span = spanOfRecord(c.Encoded, out.Keys)
		}
		out.Threads = append(out.Threads, c)
	}
	return out, p.checkAlive()
}

// threadVariables returns the definitions of the variable, cached until the process publishes
// again.
func (p *Process) threadVariables(ctx context.Context, publishedAtNS uint64) ([]tlsvar.Variable, error) {
	s := &p.threads
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.variables) > 0 && s.variablesPublishedAt == publishedAtNS {
		return s.variables, s.unresolved
	}
	headers, err := s.source.ProgramHeaders()
	if err != nil {
		return nil, p.classify(err)
	}
	target := tlsvar.Process{Memory: p.target, ProgramHeaders: headers}
	for m, err := range p.target.Maps(func(name []byte) bool { return len(name) > 0 && name[0] == '/' }) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, p.classify(err)
		}
		if m.Offset == 0 && m.Perms.Read && len(target.Modules) < maxModules {
			target.Modules = append(target.Modules, tlsvar.Module{Start: m.Start, Name: m.Name})
			base := m.Name[strings.LastIndexByte(m.Name, '/')+1:]
			// Debian's ld-musl is a link to libc.so. glibc's file name has a version: libc.so.6.
			target.Musl = target.Musl || base == "libc.so" || strings.HasPrefix(base, "ld-musl") || strings.HasPrefix(base, "libc.musl")
		}
	}
	s.variables, s.unresolved = target.Find(threadContextVariable)
	s.variablesPublishedAt = publishedAtNS
	return s.variables, s.unresolved
}

// maxModules bounds the number of mapped files searched for the variable.
const maxModules = 4096

// threadRecord returns the address and contents of a thread's record, or 0 if it has none.
func (p *Process) threadRecord(tid int, variables []tlsvar.Variable) (uint64, []byte, error) {
	tp, err := p.threadPointer(tid)
	if err != nil {
		return 0, nil, err
	}
	for i := range variables {
		address, err := variables[i].Address(p.target, tp)
		if err != nil {
			return 0, nil, err
		}
		if address == 0 {
			continue
		}
		record, encoded, err := p.readRecord(address)
		if record != 0 || err != nil {
			return record, encoded, err
		}
	}
	return 0, nil, nil
}

// readRecord repeatedly reads the record that the variable at address points at, until two reads
// are equal.
func (p *Process) readRecord(address uint64) (uint64, []byte, error) {
	for range maxAttempts {
		var before, after [8]byte
		if _, err := p.target.ReadAt(before[:], int64(address)); err != nil {
			return 0, nil, err
		}
		record := binary.NativeEndian.Uint64(before[:])
		if record == 0 {
			return 0, nil, nil
		}
		encoded := make([]byte, wire.ThreadContextRecordSize, wire.MaxThreadContextRecord)
		if _, err := p.target.ReadAt(encoded, int64(record)); err != nil {
			return record, nil, err
		}
		encoded = append(encoded, make([]byte, binary.NativeEndian.Uint16(encoded[wire.ThreadContextRecordSize-2:]))...)
		again := make([]byte, len(encoded))
		_, err := p.threads.source.ReadParts([]remotemem.Part{
			{Address: record, Data: encoded}, {Address: address, Data: after[:]}, {Address: record, Data: again},
		})
		if err != nil {
			return record, nil, err
		}
		if before == after && bytes.Equal(encoded, again) {
			return record, encoded, nil
		}
	}
	return 0, nil, errChanging
}

// threadPointer returns the thread pointer of a thread, which never changes.
func (p *Process) threadPointer(tid int) (uint64, error) {
	start, err := p.threads.source.ThreadStart(tid)
	if err != nil {
		return 0, err
	}
	s := &p.threads
	s.mu.Lock()
	cached, ok := s.pointers[tid]
	s.mu.Unlock()
	if ok && cached.start == start {
		return cached.pointer, nil
	}
	cached.start = start
	err = tlsvar.Stopped(tid, func(pointer uint64) error {
		cached.pointer = pointer
		return nil
	})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pointers == nil || len(s.pointers) >= maxThreads {
		s.pointers = map[int]cachedPointer{}
	}
	s.pointers[tid] = cached
	return cached.pointer, nil
}

// cachedPointer is a thread pointer, with the start time of its thread to detect that the thread
// id was reused.
type cachedPointer struct{ start, pointer uint64 }

// spanOfRecord decodes a record. It returns nil if the record is invalid or has no ids. If
// several attributes have the same key, the last one counts.
func spanOfRecord(encoded []byte, keys []string) *ThreadSpan {
	if len(encoded) < wire.ThreadContextRecordSize || encoded[24] != 1 {
		return nil
	}
	s := &ThreadSpan{
		TraceID: [16]byte(encoded[:16]), SpanID: [8]byte(encoded[16:24]), TraceFlags: encoded[25],
		Carrier: ThreadContextRecord, Proven: true,
	}
	if s.TraceID == [16]byte{} || s.SpanID == [8]byte{} {
		return nil
	}
	s.Attributes, _ = decodeAttributes(encoded[wire.ThreadContextRecordSize:], keys)
	return s
}

// threadsByContext implements [Process.Threads] for processes with thread contexts.
func (p *Process) threadsByContext(ctx context.Context) ([]Thread, error) {
	contexts, err := p.ThreadContexts(ctx)
	if err != nil {
		return nil, err
	}
	threads := make([]Thread, 0, len(contexts.Threads))
	for _, c := range contexts.Threads {
		threads = append(threads, Thread{TID: c.TID, OwnTID: c.OwnTID, Span: c.Span})
	}
	return threads, nil
}
