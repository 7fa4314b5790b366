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
	"syscall"
	"time"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/tlsvar"
	"github.com/otelctx/otelctx/internal/wire"
)

// ThreadContexts holds the contexts that the threads of a process publish through the thread-local
// variable otel_thread_ctx_v1, according to OTEP 4947.
type ThreadContexts struct {
	// Keys lists the names of attributes, indexed by the key bytes in [ThreadContext.Encoded].
	Keys []string
	// Modules are the paths of the executables and libraries that define the variable. Unresolved is
	// the reason why other definitions cannot be used, or nil.
	Modules    []string
	Unresolved error
	// Threads lists all threads of the process, at most 131,072.
	Threads []ThreadContext
}

// ThreadContext is the context of one thread.
type ThreadContext struct {
	// TID is the thread's id in the caller's PID namespace. OwnTID is its id in the process's own
	// PID namespace.
	TID, OwnTID int
	// Record is the address of the thread's record in the process, or 0 if it has none.
	Record uint64
	// Encoded is the record: 28 bytes, followed by its attributes.
	Encoded []byte
	// Span is the span in the record. It is nil if there is no record, if the record is not valid
	// or has no ids, or if Err is not nil.
	Span *ThreadSpan
	// Err is the reason why the thread could not be read, or nil: another process traces the thread,
	// it is in an uninterruptible sleep, reading it takes too long, or the memory of its record is
	// unreadable.
	Err error
}

// threadContextVariable is the name of the thread-local variable in OTEP 4947.
const threadContextVariable = "otel_thread_ctx_v1"

// stopBudget is the time that one call of [Process.ThreadContexts] spends on stopping threads. Stopping
// one takes tens of microseconds.
const stopBudget = 2 * time.Second

// Reasons why a thread is left out.
var (
	// errChanging means that a record changed during every attempt to read it.
	errChanging        = fmt.Errorf("%w: the record changed at each read", ErrBusy)
	errUninterruptible = errors.New("the thread is in an uninterruptible sleep (state D)")
	errStopBudget      = fmt.Errorf("stopping the threads takes longer than %v", stopBudget)
)

// ThreadContexts returns the thread contexts that the process publishes according to OTEP 4947,
// with a threadlocal.schema_version of tlsdesc_v1_dev or tls_v1. To read only their spans, use
// [Process.Threads], which supports Go services, too.
//
// ThreadContexts reads the records while the threads run. It reads the variable and the whole record
// twice, retries if the reads differ, and takes a span only from a record that is marked as valid.
// So it never uses the span of a record that is being written. The OTEP describes only how to read
// stopped threads, but stopping a thread for every read would keep interrupting the service's
// system calls with EINTR.
//
// To find the variable, ThreadContexts needs each thread's pointer to its thread-local storage. It
// caches these pointers until the process publishes again. With glibc on amd64, it finds them in memory. Otherwise it stops each
// thread once, for tens of microseconds; a thread that is already stopped (SIGSTOP) stays stopped.
// It does not try to stop a thread that another process traces or that is in an uninterruptible
// sleep, and spends at most two seconds on stopping threads. The threads that are left out have an
// error.
//
// The error wraps [ErrNoThreadContext] if the process does not publish such contexts. The other
// errors are those of [Process.ProcessContext].
func (p *Process) ThreadContexts(ctx context.Context) (*ThreadContexts, error) {
	_, message, contextErr, err := p.published(ctx)
	if err == nil && message == nil {
		err = contextErr
	}
	if err != nil {
		return nil, err
	}
	a := newAdvertisement(message)
	schema, err := a.text(wire.KeySchemaVersion)
	if err != nil {
		return nil, p.error(fmt.Errorf("%w in thread contexts: %w", ErrNoThreadContext, err))
	}
	if schema != wire.SchemaTLSDevelopment && schema != wire.SchemaTLS {
		return nil, p.error(fmt.Errorf("%w in thread contexts: %s", ErrNoThreadContext, describeSchema(schema)))
	}
	out := &ThreadContexts{Keys: a.keys()}
	variables, err := p.threadVariables(ctx, message.PublishedAtNS)
	if err != nil && len(variables) == 0 && !errors.Is(err, tlsvar.ErrUnresolved) {
		return nil, err
	}
	out.Unresolved = err
	for _, v := range variables {
		out.Modules = append(out.Modules, v.Module)
	}
	threads, err := p.listThreads(ctx)
	if err != nil {
		return nil, err
	}
	stops, cancel := context.WithTimeout(ctx, stopBudget)
	defer cancel()
	for _, t := range threads {
		c := ThreadContext{TID: t.TID, OwnTID: t.OwnTID}
		c.Record, c.Encoded, c.Err = p.threadRecord(stops, t.TID, variables)
		switch {
		case ctx.Err() != nil:
			return nil, p.error(ctx.Err())
		case errors.Is(c.Err, context.DeadlineExceeded):
			c.Err = errStopBudget
		case errors.Is(c.Err, procfs.ErrProcessGone):
			continue
		}
		if c.Err == nil {
			c.Span = spanOfRecord(c.Encoded, out.Keys)
		}
		out.Threads = append(out.Threads, c)
	}
	return out, p.checkAlive()
}

// describeSchema says where a process publishes its spans according to its threadlocal.schema_version.
func describeSchema(schema string) string {
	switch schema {
	case wire.SchemaTLSDevelopment, wire.SchemaTLS:
		return fmt.Sprintf("schema %q: the spans are in records of threads", schema)
	case wire.SchemaGoLabels:
		return fmt.Sprintf("schema %q: the spans are in the profiler labels of goroutines", schema)
	case wire.SchemaSlots:
		return fmt.Sprintf("schema %q: the spans are in slots of threads", schema)
	case wire.SchemaNodeDevelopment, wire.SchemaNode:
		return fmt.Sprintf("schema %q: the spans are in objects of Node.js, which are not read", schema)
	default:
		const maxSchema = 64
		return fmt.Sprintf("unknown schema %.*q", maxSchema, schema)
	}
}

// threadVariables returns the definitions of the variable. It caches them until the process
// publishes again; publishedAtNS is the time of the current publication. The error is the reason
// why definitions are unusable.
func (p *Process) threadVariables(ctx context.Context, publishedAtNS uint64) ([]tlsvar.Variable, error) {
	s := &p.threads
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.variables) > 0 && s.variablesPublishedAt == publishedAtNS {
		return s.variables, s.unresolved
	}
	if s.variablesPublishedAt != publishedAtNS {
		s.pointers = nil // An exec keeps the id and the start time of the thread that it leaves.
	}
	headers, err := s.source.ProgramHeaders()
	if err != nil {
		return nil, p.classify(err)
	}
	target := tlsvar.Process{Memory: p.target, ProgramHeaders: headers}
	for m, err := range p.mappings(ctx, func(name []byte) bool { return len(name) > 0 && name[0] == '/' }) {
		if err != nil {
			return nil, err
		}
		if m.Offset == 0 && m.Perms.Read && len(target.Modules) < maxModules {
			target.Modules = append(target.Modules, tlsvar.Module{Start: m.Start, Name: m.Name})
			base := m.Name[strings.LastIndexByte(m.Name, '/')+1:]
			// On Debian, ld-musl is a link to libc.so. The file of glibc has a version in its name:
			// libc.so.6.
			target.Musl = target.Musl || base == "libc.so" || strings.HasPrefix(base, "ld-musl") || strings.HasPrefix(base, "libc.musl")
		}
	}
	variables, err := target.Find(ctx, threadContextVariable)
	if ctx.Err() != nil {
		return nil, p.error(ctx.Err())
	}
	if err != nil && !errors.Is(err, tlsvar.ErrUnresolved) {
		err = p.classify(err)
	}
	s.variables, s.unresolved, s.variablesPublishedAt = variables, err, publishedAtNS
	return variables, err
}

// maxModules limits the number of mapped files that are searched for the variable.
const maxModules = 4096

// threadRecord returns the address and the contents of the thread's record. The address is 0 if the
// thread has none. ctx limits the time for stopping the thread.
func (p *Process) threadRecord(ctx context.Context, tid int, variables []tlsvar.Variable) (uint64, []byte, error) {
	tp, err := p.threadPointer(ctx, tid)
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

// readRecord reads the record that the variable at this address points to, until two reads are
// equal. It returns the address and the contents of the record. The address is 0 if the variable is
// 0.
func (p *Process) readRecord(address uint64) (uint64, []byte, error) {
	var (
		record  uint64
		failure error
	)
	for range maxAttempts {
		var before [8]byte
		if _, err := p.target.ReadAt(before[:], int64(address)); err != nil {
			return 0, nil, err
		}
		if record = binary.NativeEndian.Uint64(before[:]); record == 0 {
			return 0, nil, nil
		}
		encoded, again, after, err := p.readRecordTwice(record, address)
		if err == nil && before == after && bytes.Equal(encoded, again) {
			return record, encoded, nil
		}
		failure = err // Retry, because a thread that replaces its record may free the old one.
	}
	if failure != nil {
		return record, nil, failure
	}
	return 0, nil, errChanging
}

// readRecordTwice reads a record, then the variable at this address, and then the record again.
func (p *Process) readRecordTwice(record, address uint64) (encoded, again []byte, variable [8]byte, err error) {
	encoded = make([]byte, wire.ThreadContextRecordSize, wire.MaxThreadContextRecord)
	if _, err := p.target.ReadAt(encoded, int64(record)); err != nil {
		return nil, nil, variable, err
	}
	encoded = append(encoded, make([]byte, binary.NativeEndian.Uint16(encoded[wire.ThreadContextRecordSize-2:]))...)
	again = make([]byte, len(encoded))
	_, err = p.threads.source.ReadParts([]remotemem.Part{
		{Address: record, Data: encoded}, {Address: address, Data: variable[:]}, {Address: record, Data: again},
	})
	return encoded, again, variable, err
}

// threadPointer returns the thread pointer of a thread. It is cached until the process publishes
// again, because it changes only when the process executes a program.
func (p *Process) threadPointer(ctx context.Context, tid int) (uint64, error) {
	stat, err := p.threads.source.ThreadStat(tid)
	if err != nil {
		return 0, err
	}
	s := &p.threads
	s.mu.Lock()
	cached, ok := s.pointers[tid]
	s.mu.Unlock()
	if ok && cached.start == stat.Start {
		return cached.pointer, nil
	}
	callersID, err := procfs.Host().CallersID(p.pid, tid)
	if err != nil {
		return 0, fmt.Errorf("only the kernel knows its thread pointer: %w", err)
	}
	pointer, ok := tlsvar.Pointer(p.target, callersID)
	if !ok {
		if pointer, err = stoppedPointer(ctx, tid, callersID, stat.State); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pointers == nil || len(s.pointers) >= maxThreads {
		s.pointers = map[int]cachedPointer{}
	}
	s.pointers[tid] = cachedPointer{stat.Start, pointer}
	return pointer, nil
}

// stoppedPointer stops a thread to learn its thread pointer, unless its state says that it cannot
// stop. callersID is the id of the thread in the caller's PID namespace.
func stoppedPointer(ctx context.Context, tid, callersID int, state byte) (uint64, error) {
	switch state {
	case 'D': // also a thread that waits for its child after vfork
		return 0, errUninterruptible
	case 'Z', 'X', 'x':
		return 0, fmt.Errorf("thread %d: %w", tid, procfs.ErrProcessGone)
	}
	const attempts, pause = 100, time.Millisecond
	for attempt := 1; ; attempt++ {
		pointer, err := tlsvar.StoppedPointer(ctx, callersID)
		switch {
		case errors.Is(err, syscall.ESRCH):
			return 0, fmt.Errorf("%w: %w", procfs.ErrProcessGone, err)
		case !errors.Is(err, syscall.EPERM):
			return pointer, err
		}
		tracer, tracerErr := procfs.Host().Tracer(tid)
		switch {
		case tracerErr != nil || tracer == 0 && attempt > 1:
			return 0, err
		case tracer != 0 && tracer != procfs.Host().SelfID() || attempt == attempts:
			return 0, fmt.Errorf("process %d traces the thread", tracer)
		}
		// Another call of this program is stopping the thread, or has just done so.
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// cachedPointer is a thread pointer. start is the start time of its thread, which differs if the
// thread id has been reused.
type cachedPointer struct{ start, pointer uint64 }

// spanOfRecord decodes a record. It returns nil if the record is not valid or has no ids.
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

// threadsByContext implements [Process.Threads] for processes that publish thread contexts
// according to OTEP 4947.
func (p *Process) threadsByContext(ctx context.Context) ([]Thread, error) {
	contexts, err := p.ThreadContexts(ctx)
	if err != nil {
		return nil, err
	}
	threads := make([]Thread, 0, len(contexts.Threads))
	for _, c := range contexts.Threads {
		threads = append(threads, Thread{TID: c.TID, OwnTID: c.OwnTID, Span: c.Span, Err: c.Err})
	}
	return threads, nil
}
