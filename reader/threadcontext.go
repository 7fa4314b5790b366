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

// ThreadContexts are the thread contexts of OTEP 4947 that a process publishes through the thread-local variable otel_thread_ctx_v1.
type ThreadContexts struct {
	// Schema is the process's threadlocal.schema_version, tlsdesc_v1_dev or tls_v1.
	Schema string
	// Keys are the names of attributes by their key index.
	Keys []string
	// Variables are the modules that define the variable, and Unresolved is why others that define it cannot be used.
	Variables  []ThreadVariable
	Unresolved error
	// Threads are all threads of the process, at most 131,072.
	Threads []ThreadContext
}

// ThreadVariable is a definition of the thread-local variable.
type ThreadVariable struct {
	// Module is the path of the executable or library. Model is the access model that was found in it: local-exec, initial-exec or
	// global-dynamic.
	Module, Model string
}

// ThreadContext is the context of one thread.
type ThreadContext struct {
	// TID is its id in the caller's PID namespace, OwnTID that in the namespace of the process.
	TID, OwnTID int
	// Record is the address of the record in the process, 0 if the thread has none.
	Record uint64
	// Encoded is the record: 28 bytes, and as many bytes of attributes as it says. It belongs to the caller.
	Encoded []byte
	// Span is what the record says. It is nil without a record, if the record is not valid or has no ids, and with Err.
	Span *ThreadSpan
	// Err is why the thread could not be read, or nil.
	Err error
}

// threadContextVariable is the symbol that OTEP 4947 names.
const threadContextVariable = "otel_thread_ctx_v1"

// errMoving says that a record was different each time.
var errMoving = fmt.Errorf("%w: the record changed at each reading", ErrBusy)

// ThreadContexts returns the thread contexts of the process, for processes whose threadlocal.schema_version is tlsdesc_v1_dev or
// tls_v1 (OTEP 4947). [Process.Threads] returns their spans as it does those of Go services.
//
// A thread is stopped once, for the tens of microseconds that it takes to learn its thread pointer; after that, records are read while
// it runs. A record counts only if two readings of the pointer and the whole record are equal and the record is valid, so that one
// which is being written is never returned. The OTEP lets readers read stopped threads only; stopping each thread at each reading would
// let system calls of the service fail with EINTR all the time.
//
// The error wraps [ErrNoThreadContext] if the process publishes no such contexts, and otherwise is one of those of
// [Process.ProcessContext]. It is safe for concurrent use.
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

// threadVariables finds the variable, and remembers it for as long as the publication is the same.
func (p *Process) threadVariables(ctx context.Context, publishedAtNS uint64) ([]tlsvar.Variable, error) {
	s := &p.threads
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.variables) > 0 && s.variablesOf == publishedAtNS {
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
			target.Musl = target.Musl || strings.HasPrefix(base, "ld-musl") || strings.HasPrefix(base, "libc.musl")
		}
	}
	s.variables, s.unresolved = target.Find(threadContextVariable)
	s.variablesOf = publishedAtNS
	return s.variables, s.unresolved
}

// maxModules bounds how many mapped files are searched for the variable.
const maxModules = 4096

// threadRecord returns the record of a thread, or 0 if none of the variables names one.
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

// readRecord reads the record that the variable at address names until two readings are equal.
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
	return 0, nil, errMoving
}

// threadPointer returns the thread pointer of a thread, which stays the same for its life.
func (p *Process) threadPointer(tid int) (uint64, error) {
	start, err := p.threads.source.ThreadStart(tid)
	if err != nil {
		return 0, err
	}
	s := &p.threads
	s.mu.Lock()
	known, ok := s.pointers[tid]
	s.mu.Unlock()
	if ok && known.start == start {
		return known.pointer, nil
	}
	known.start = start
	err = tlsvar.Stopped(tid, func(pointer uint64) error {
		known.pointer = pointer
		return nil
	})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pointers == nil || len(s.pointers) >= maxThreads {
		s.pointers = map[int]knownPointer{}
	}
	s.pointers[tid] = known
	return known.pointer, nil
}

// knownPointer is the thread pointer of the thread that started at this time.
type knownPointer struct{ start, pointer uint64 }

// spanOfRecord returns what a record says, nil if it is not valid or has no ids. The last attribute with a key counts.
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

// threadsByContext is [Process.Threads] for processes with thread contexts.
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
