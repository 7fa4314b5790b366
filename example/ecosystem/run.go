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

// runner runs the four programs.
type runner struct {
	out io.Writer
	// collector, service, otelctx and join are the names or paths of the programs.
	collector, service, otelctx, join string
	// dir is the collector's output directory, "" for a new one.
	dir       string
	duration  time.Duration
	frequency int
}

// run records the service and joins the collector's files. If a program fails, run returns an
// error. It wraps an [exec.ExitError] if the program is otelctx or join.
func (r *runner) run(ctx context.Context) (err error) {
	if r.dir == "" {
		if r.dir, err = os.MkdirTemp("", "ecosystem-"); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				_ = os.RemoveAll(r.dir) // Leave nothing but results behind.
			}
		}()
	}
	if err := r.record(ctx); err != nil {
		return err
	}
	r.sayf("The service and the collector have ended, and all data is in the files. Join spans and samples:")
	return r.show(ctx, r.join, filepath.Join(r.dir, "traces.jsonl"), filepath.Join(r.dir, "profiles.jsonl"))
}

// record runs the collector, the service and otelctx. When it returns, the collector has written its
// files.
func (r *runner) record(ctx context.Context) (err error) {
	r.sayf("A collector starts. It receives traces and profiles, and writes them to a file each.")
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

	r.sayf("A service starts. It sends its spans to the collector, and requests to itself.")
	service := r.command(ctx, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + http}, r.service, "-serve")
	stdout, childEnd, err := os.Pipe() // StdoutPipe would lose the output of a process that has exited.
	if err != nil {
		return err
	}
	defer func() { _ = stdout.Close() }()
	service.command.Stdout = childEnd
	err = errors.Join(service.start(), childEnd.Close())
	if err != nil {
		return err
	}
	// Stop the service before the collector, because the service sends its remaining spans when
	// it is stopped.
	defer func() { err = errors.Join(err, service.stop()) }()
	timeout := time.AfterFunc(patience, service.cancel)
	pid, err := readPID(stdout)
	timeout.Stop()
	if err != nil {
		return err
	}

	r.sayf("otelctx samples process %d for %v, and sends the profile to the collector.", pid, r.duration)
	return r.show(ctx, r.otelctx, "record", strconv.Itoa(pid), "--duration", r.duration.String(),
		"--freq", strconv.Itoa(r.frequency), "--top", "3", "--otlp-endpoint", "http://"+grpc)
}

// readPID reads the line pid=N, which the service prints once it answers requests.
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

// show prints a command, runs it to its end, and prints its output.
func (r *runner) show(ctx context.Context, name string, args ...string) error {
	p := r.command(ctx, nil, name, args...)
	p.command.Stdout = r.out
	return p.run()
}

// command prints a command and returns a process that has not been started.
func (r *runner) command(ctx context.Context, environ []string, name string, args ...string) *process {
	printed := append(append([]string{}, environ...), filepath.Base(name))
	_, _ = fmt.Fprintf(r.out, "\n$ %s\n", strings.Join(append(printed, args...), " "))
	return newProcess(ctx, environ, name, args...)
}

// sayf prints a message. A write error is ignored.
func (r *runner) sayf(format string, args ...any) {
	_, _ = fmt.Fprintf(r.out, "\n"+format+"\n", args...)
}

// freeAddresses returns two unused addresses of this host.
func freeAddresses(ctx context.Context) (a, b string, err error) {
	var addresses [2]string
	for i := range addresses {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer func() { _ = l.Close() }() // Keep the first listener open, so that the second gets another port.
		addresses[i] = l.Addr().String()
	}
	return addresses[0], addresses[1], nil
}
