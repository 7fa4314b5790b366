// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// demo runs a service, reads it with otelctx and explains the output.
type demo struct {
	out io.Writer
	// otelctx is the command to run.
	otelctx string
	// fallback is used if otelctx may not read the service.
	fallback fallback
	// profile is the output file of the recording, or "" for a file in a new directory.
	profile  string
	duration time.Duration
}

// runDemo runs the demo with the otelctx command of that name or path. otelctx records for duration,
// and writes the file profile or, if profile is "", a file in a new directory.
func runDemo(ctx context.Context, out io.Writer, otelctx, profile string, duration time.Duration) error {
	path, err := exec.LookPath(otelctx)
	if err != nil {
		return fmt.Errorf("no otelctx command (%w): build it in cmd/otelctx and set its path with -otelctx", err)
	}
	d := &demo{out: out, otelctx: path, fallback: newFallback(out), profile: profile, duration: duration}
	return d.run(ctx)
}

// requestsBefore is the number of requests that the service serves before it is read.
const requestsBefore = 50

// run runs the demo. It returns an error if the service fails or cannot be read, unless the reason is
// that the kernel denies permission.
func (d *demo) run(ctx context.Context) (err error) {
	d.sayf("A web service starts. It is traced with OpenTelemetry, and publishes its active\nspans in its memory.")
	service, err := startService(ctx)
	if err != nil {
		return err
	}
	defer func() {
		d.sayf("The service ends.")
		err = errors.Join(err, service.stop())
	}()
	for served := int64(0); served < requestsBefore; {
		a, err := get(ctx, service.url)
		if err != nil {
			return err
		}
		served = a.Request
	}
	d.sayf("It is process %d, and has answered %d requests. Another process, otelctx, reads\n"+
		"its memory: which requests are running now, and what is each doing?", service.pid, requestsBefore)
	code, err := d.showSpans(ctx, service.pid)
	switch {
	case err != nil:
		return err
	case code == exitNotPermitted:
		return d.fallback.show(ctx, service.pid)
	case code != 0:
		return fmt.Errorf("otelctx spans: exit code %d", code)
	}
	d.sayf("Each request has a span GET /work. Inside it, a span named query waits for a\ndatabase, and one named digests computes.")
	if err := d.record(ctx, service.pid); err != nil {
		return err
	}
	return d.explain(ctx, service)
}

// showSpans shows the spans of the requests that are running. The service may be between two requests, so it looks again if
// there is no span.
func (d *demo) showSpans(ctx context.Context, pid int) (code int, err error) {
	const looks = 100
	args := []string{spans, strconv.Itoa(pid)}
	d.sayCommand(args)
	var seen bytes.Buffer
	for range looks {
		seen.Reset()
		code, err = d.runOtelctx(ctx, &seen, args...)
		if err != nil || code != 0 || !bytes.Contains(seen.Bytes(), []byte("live spans: 0\n")) {
			break
		}
	}
	_, _ = d.out.Write(seen.Bytes())
	return code, err
}

// spans is the subcommand of otelctx that shows live spans.
const spans = "spans"

// exitNotPermitted is the exit code of otelctx if the kernel denies permission.
const exitNotPermitted = 4

// record records the service's CPU use. A lack of permission is not an error.
func (d *demo) record(ctx context.Context, pid int) error {
	file := d.profile
	if file == "" {
		dir, err := os.MkdirTemp("", "quickstart-")
		if err != nil {
			return err
		}
		// Remove the directory if there is no profile in it.
		defer func() { _ = os.Remove(dir) }()
		file = filepath.Join(dir, "profile.pb.gz")
	}
	d.sayf("Which endpoint and which spans use the CPU? otelctx samples the service for %v:", d.duration)
	code, err := d.showOtelctx(ctx, "record", strconv.Itoa(pid), "--duration", d.duration.String(), "--freq", "997",
		"--top", "3", "--output", file)
	switch {
	case err != nil:
		return err
	case code == exitNotPermitted:
		d.sayf("Sampling is not permitted here; the lines above name what is missing. As root,\n" +
			"this shows the functions, endpoints and spans that use the most CPU time.")
		return nil
	case code != 0:
		return fmt.Errorf("otelctx record: exit code %d", code)
	}
	return nil
}

// hang is how long requests have hung before the demo shows them.
const hang = 3 * time.Second

// explain makes two requests hang, and lets otelctx show what they wait for.
func (d *demo) explain(ctx context.Context, service *child) error {
	url, err := neturl.Parse(service.url)
	if err != nil {
		return err
	}
	for _, path := range []string{checkoutPath, cartPath} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url.ResolveReference(&neturl.URL{Path: path}).String(), nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request) // Do returns with the header, while the request is still running.
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
	}
	d.sayf("Most slow requests do not compute, they wait. Two requests start now, and hang.\nWhat do they wait for, %v later?", hang)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(hang):
	}
	pid := strconv.Itoa(service.pid)
	for _, args := range [][]string{{spans, pid, "--min-age", "2s"}, {spans, pid, "--stacks", "--name", "GET " + checkoutPath}} {
		code, err := d.showOtelctx(ctx, args...)
		switch {
		case err != nil:
			return err
		case code != 0:
			return fmt.Errorf("otelctx spans: exit code %d", code)
		}
	}
	d.sayf("%s waits for a lock. %s has that lock, and waits for a payment server\n"+
		"that does not answer: see the line that begins with held up by?, on amd64. otelctx read\n"+
		"all this from the memory of the running service.", cartPath, checkoutPath)
	return nil
}

// showOtelctx prints a command, runs it, prints its output, and returns its exit code.
func (d *demo) showOtelctx(ctx context.Context, args ...string) (code int, err error) {
	d.sayCommand(args)
	return d.runOtelctx(ctx, d.out, args...)
}

// sayCommand prints a command.
func (d *demo) sayCommand(args []string) {
	_, _ = fmt.Fprint(d.out, "\n$ otelctx")
	for _, arg := range args {
		if strings.Contains(arg, " ") {
			arg = "'" + arg + "'"
		}
		_, _ = fmt.Fprintf(d.out, " %s", arg)
	}
	_, _ = fmt.Fprintln(d.out)
}

// runOtelctx runs a command and returns its exit code.
func (d *demo) runOtelctx(ctx context.Context, out io.Writer, args ...string) (code int, err error) {
	cmd := exec.CommandContext(ctx, d.otelctx, args...) //nolint:gosec // The user says what to run.
	cmd.Stdout = out
	cmd.Stderr = out
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

func (d *demo) sayf(format string, args ...any) { sayf(d.out, format, args...) }

func sayf(out io.Writer, format string, args ...any) {
	// Ignore write errors: the demo continues even if nobody reads its output.
	_, _ = fmt.Fprintf(out, "\n"+format+"\n", args...)
}
