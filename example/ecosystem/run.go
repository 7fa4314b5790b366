// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// runner runs everything.
type runner struct {
	out io.Writer
	// The commands to run, by name or path.
	collector, service, otelctx, join string
	// dir is where the collector writes, "" for a new directory.
	dir       string
	duration  time.Duration
	frequency int
}

// run records the service and joins what the collector has got. The error wraps that of
// the command that failed.
func (r *runner) run(ctx context.Context) (err error) {
	if r.dir == "" {
		if r.dir, err = os.MkdirTemp("", "ecosystem-"); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				_ = os.RemoveAll(r.dir) // Nothing is left behind but results.
			}
		}()
	}
	if err := r.record(ctx); err != nil {
		return err
	}
	r.sayf("The service and the collector have ended: what they had is in the files. Spans and samples together:")
	return r.show(ctx, r.join, filepath.Join(r.dir, "traces.jsonl"), filepath.Join(r.dir, "profiles.jsonl"))
}

// record leaves the collector's files behind.
func (r *runner) record(ctx context.Context) (err error) {
	r.sayf("A collector starts. It takes traces and profiles, and writes each to a file.")
	grpc, http, err := freeAddresses(ctx)
	if err != nil {
		return err
	}
	collector := r.command(ctx, []string{"COLLECTOR_DIR=" + r.dir, "COLLECTOR_GRPC_ENDPOINT=" + grpc, "COLLECTOR_HTTP_ENDPOINT=" + http},
		r.collector, "--feature-gates=service.profilesSupport")
	if err := collector.start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, collector.stop()) }()
	if err := collector.listens(ctx, grpc, http); err != nil {
		return err
	}

	r.sayf("A service starts. It sends its spans to the collector, and itself requests.")
	service := r.command(ctx, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + http}, r.service, "-serve")
	stdout, theirs, err := os.Pipe() // Not StdoutPipe, which loses what it has said if it has ended.
	if err != nil {
		return err
	}
	defer func() { _ = stdout.Close() }()
	service.command.Stdout = theirs
	err = errors.Join(service.start(), theirs.Close())
	if err != nil {
		return err
	}
	// Before the collector: what it has not sent yet it sends now.
	defer func() { err = errors.Join(err, service.stop()) }()
	timeout := time.AfterFunc(patience, service.cancel)
	pid, err := readPID(stdout)
	timeout.Stop()
	if err != nil {
		return err
	}

	r.sayf("otelctx samples process %d for %v, and sends the collector its profile.", pid, r.duration)
	return r.show(ctx, r.otelctx, "record", strconv.Itoa(pid), "--duration", r.duration.String(),
		"--freq", strconv.Itoa(r.frequency), "--top", "3", "--otlp-endpoint", "http://"+grpc)
}

// readPID reads the line by which the service says that it serves.
func readPID(stdout io.Reader) (int, error) {
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		return 0, errors.Join(errors.New("the service has ended before it served"), lines.Err())
	}
	text, ok := strings.CutPrefix(lines.Text(), "pid=")
	if !ok {
		return 0, fmt.Errorf("the service said %q, not pid=", lines.Text())
	}
	return strconv.Atoi(text)
}

// show shows and runs a command to its end, and what it says.
func (r *runner) show(ctx context.Context, name string, args ...string) error {
	p := r.command(ctx, nil, name, args...)
	p.command.Stdout = r.out
	return p.run()
}

// command returns a process to be started, and shows it.
func (r *runner) command(ctx context.Context, environ []string, name string, args ...string) *process {
	shown := append(append([]string{}, environ...), filepath.Base(name))
	_, _ = fmt.Fprintf(r.out, "\n$ %s\n", strings.Join(append(shown, args...), " "))
	return newProcess(ctx, environ, name, args...)
}

// sayf tells the user something. That nobody hears it is no error.
func (r *runner) sayf(format string, args ...any) {
	_, _ = fmt.Fprintf(r.out, "\n"+format+"\n", args...)
}

// freeAddresses returns two addresses of this host that nobody listens at.
func freeAddresses(ctx context.Context) (a, b string, err error) {
	var addresses [2]string
	for i := range addresses {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer func() { _ = l.Close() }() // When there are both, so that they differ.
		addresses[i] = l.Addr().String()
	}
	return addresses[0], addresses[1], nil
}
