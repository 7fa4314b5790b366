// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/reader"
)

// fallback explains why otelctx may not read the service, and shows what this process can read.
type fallback struct {
	out io.Writer
	// read reads the process context of another process.
	read func(ctx context.Context, pid int) (*reader.ProcessContext, error)
	// maps opens the list of a process's mappings.
	maps func(pid int) (io.ReadCloser, error)
	// ptraceScope returns the mode of the Yama security module.
	ptraceScope func() ([]byte, error)
}

func newFallback(out io.Writer) fallback {
	return fallback{
		out:         out,
		read:        readContext,
		maps:        func(pid int) (io.ReadCloser, error) { return os.Open(fmt.Sprintf("/proc/%d/maps", pid)) },
		ptraceScope: func() ([]byte, error) { return os.ReadFile("/proc/sys/kernel/yama/ptrace_scope") },
	}
}

// readContext reads a process context with package reader. It needs no other code.
func readContext(ctx context.Context, pid int) (*reader.ProcessContext, error) {
	p, err := reader.Open(pid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.Close() }()
	return p.ProcessContext(ctx)
}

// show prints the explanation, and then the resource if this process may read it, or the mapping if
// not. It returns an error if reading fails for a reason other than permissions.
func (f *fallback) show(ctx context.Context, pid int) error {
	f.explain()
	sayf(f.out, "This demo has started the service. As its parent it may be allowed to read it, with package reader:\n")
	pc, err := f.read(ctx, pid)
	switch {
	case err == nil:
		for _, kv := range pc.Resource.GetAttributes() {
			f.linef("%s: %s", kv.GetKey(), valueText(kv.GetValue()))
		}
		return nil
	case errors.Is(err, reader.ErrNotPermitted):
		f.linef("%v", err)
		return f.showMapping(pid)
	default:
		return err
	}
}

// explain prints why the kernel did not let otelctx read the service.
func (f *fallback) explain() {
	scope, err := f.ptraceScope()
	if err != nil || strings.TrimSpace(string(scope)) == "0" {
		sayf(f.out, "The kernel did not let otelctx read the service, and its Yama module is not the reason: a different user,\n"+
			"a sandbox or the container's security profile may be. It works as root or with CAP_SYS_PTRACE, as profilers run.")
		return
	}
	sayf(f.out, "The kernel did not let otelctx read the service: /proc/sys/kernel/yama/ptrace_scope is %s, which prevents a\n"+
		"process from reading others of the same user that it has not started. It works as root or with CAP_SYS_PTRACE, as\n"+
		"profilers run.", strings.TrimSpace(string(scope)))
}

// showMapping prints the mapping by which readers find the context. More processes may list the
// mappings of a process than may read its memory.
func (f *fallback) showMapping(pid int) error {
	maps, err := f.maps(pid)
	if err != nil {
		sayf(f.out, "Neither the service nor the list of its mappings can be read: %v", err)
		return nil
	}
	defer func() { _ = maps.Close() }()
	sayf(f.out, "It is not. Still, /proc/%d/maps lists the context:\n", pid)
	found := false
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "OTEL_CTX") {
			f.linef("%s", lines.Text())
			found = true
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("process %d has no mapping of a process context", pid)
	}
	return nil
}

func (f *fallback) linef(format string, args ...any) {
	_, _ = fmt.Fprintf(f.out, "  "+format+"\n", args...)
}

// valueText formats an attribute's value. It supports the types that the service's resource uses.
func valueText(v *commonpb.AnyValue) string {
	if _, isString := v.GetValue().(*commonpb.AnyValue_StringValue); isString {
		return v.GetStringValue()
	}
	return strconv.FormatInt(v.GetIntValue(), 10)
}
