// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package publication reads what processes publish: a single process, or all that publish a process context.
package publication

import (
	"context"
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// Publication holds everything that a process publishes.
type Publication struct {
	PID     int
	Context *reader.ProcessContext
	// ContextErr is the reason why Context is nil, if the process publishes spans without a readable context.
	ContextErr error
	// Activity is empty unless it was requested.
	Activity Activity
}

// Service returns the service.name, or "".
func (p *Publication) Service() string { return ServiceOf(p.Context) }

// ServiceOf returns the service.name of a process context, which may be nil, or "".
func ServiceOf(pc *reader.ProcessContext) string {
	if pc == nil {
		return ""
	}
	for _, kv := range pc.Resource.GetAttributes() {
		if kv.GetKey() == "service.name" {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

// Title returns the beginning of what is shown of a process: its id and, unless it is "", its service.
func Title(pid int, service string) string {
	if service == "" {
		return fmt.Sprintf("Process %d", pid)
	}
	return fmt.Sprintf("Process %d (%s)", pid, display.Key(service))
}

// Activity holds the carriers of a process's spans and the threads in them.
type Activity struct {
	Carriers       []reader.Carrier
	ThreadContexts []ThreadContext
	// Advertisement is the separate message that advertises the carriers. It is nil if there is none, usually
	// because the process context advertises them.
	Advertisement *reader.ProcessContext
	// Threads holds all threads, including those in no span. It is nil if no carrier can be read.
	Threads []reader.Thread
}

// ThreadContext is a definition of the thread-local variable of OTEP 4947.
type ThreadContext struct {
	// Schema is the threadlocal.schema_version that the process context advertises.
	Schema string
	// Module is the executable or library that defines the variable, or "" if Err is not nil.
	Module string
	// Err is the reason why no variable can be used.
	Err error
}

// Read reads the context of a process, and if active is true, the spans that its threads are in.
func Read(ctx context.Context, pid int, active bool) (Publication, error) {
	return timelimit.Call(ctx, pid, timelimit.Limit, func() (Publication, error) {
		p, err := reader.Open(pid)
		if err != nil {
			return Publication{}, err
		}
		defer func() { _ = p.Close() }()
		found := Publication{PID: pid}
		if found.Context, err = p.ProcessContext(ctx); err == nil && active {
			found.Activity, err = observe(ctx, p)
		}
		return found, err
	})
}

// ReadWithoutContext reads the spans of a process whose context could not be read. contextErr is the reason;
// ReadWithoutContext returns it if the process advertises no spans either.
func ReadWithoutContext(ctx context.Context, pid int, contextErr error) (Publication, error) {
	return timelimit.Call(ctx, pid, timelimit.Limit, func() (Publication, error) {
		p, err := reader.Open(pid)
		if err != nil {
			return Publication{}, err
		}
		defer func() { _ = p.Close() }()
		a, err := observe(ctx, p)
		if err != nil || a.Advertisement == nil {
			return Publication{}, contextErr
		}
		return Publication{PID: pid, ContextErr: contextErr, Activity: a}, nil
	})
}

// observe reads the activity of a process. If the process publishes no spans, observe returns no error.
func observe(ctx context.Context, p *reader.Process) (Activity, error) {
	layout, err := p.ThreadLayout(ctx)
	if err != nil {
		return Activity{}, err
	}
	a := Activity{Carriers: layout.Carriers, ThreadContexts: threadContexts(ctx, p, layout.Context)}
	if layout.Advertisement != layout.Context {
		a.Advertisement = layout.Advertisement
	}
	a.Threads, err = p.Threads(ctx)
	if errors.Is(err, reader.ErrNoThreadContext) {
		err = nil
	}
	return a, err
}

var errNoVariable = errors.New("no module defines otel_thread_ctx_v1")

// threadContexts returns each definition of the thread-local variable of OTEP 4947. It returns nil if the process
// context has no schema or one of otelctx. If the schema is unknown or no variable can be used, an element has the error.
func threadContexts(ctx context.Context, p *reader.Process, pc *reader.ProcessContext) []ThreadContext {
	schema := ""
	if pc != nil {
		for _, kv := range pc.Attributes {
			if kv.GetKey() == wire.KeySchemaVersion {
				schema = kv.GetValue().GetStringValue()
			}
		}
	}
	if schema == "" || schema == wire.SchemaGoLabels || schema == wire.SchemaSlots {
		return nil
	}
	contexts, err := p.ThreadContexts(ctx)
	if err != nil {
		return []ThreadContext{{Schema: schema, Err: err}}
	}
	var all []ThreadContext
	for _, module := range contexts.Modules {
		all = append(all, ThreadContext{Schema: schema, Module: module})
	}
	if contexts.Unresolved != nil {
		all = append(all, ThreadContext{Schema: schema, Err: contexts.Unresolved})
	}
	if len(all) == 0 {
		all = append(all, ThreadContext{Schema: schema, Err: errNoVariable})
	}
	return all
}
