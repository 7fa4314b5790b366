// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	d.sayf(`A service starts. It publishes its OpenTelemetry resource while its TracerProvider is built.`)
	service, err := startService(ctx)
	if err != nil {
		return err
	}
	defer func() {
		d.sayf("The service ends. Its context disappears with it.")
		err = errors.Join(err, service.stop())
	}()
	for served := int64(0); served < requestsBefore; {
		a, err := get(ctx, service.url)
		if err != nil {
			return err
		}
		served = a.Request
	}
	d.sayf("It is process %d, serves %s and has answered %d requests.", service.pid, service.url, requestsBefore)

	d.sayf("Another process, which knows nothing about the service, lists the publishing processes of this host:")
	code, err := d.runOtelctx(ctx, "list")
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("otelctx list: exit code %d", code)
	}

	d.sayf("It reads the context of one of them, as a profiler does before it samples the process:")
	code, err = d.runOtelctx(ctx, "inspect", strconv.Itoa(service.pid))
	switch {
	case err != nil:
		return err
	case code == exitNotPermitted:
		return d.fallback.show(ctx, service.pid)
	case code != 0:
		return fmt.Errorf("otelctx inspect: exit code %d", code)
	}
	d.sayf("All this was read from the memory of the running service, without its help: no port, no\n" +
		"collector, no file. A profiler adds it to every sample of the process.")
	if err := d.record(ctx, service.pid); err != nil {
		return err
	}
	return d.explain(ctx, service)
}

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
	d.sayf("otelctx itself is such a profiler. It samples the service for %v: which spans use the CPU?", d.duration)
	code, err := d.runOtelctx(ctx, "record", strconv.Itoa(pid), "--duration", d.duration.String(), "--freq", "997",
		"--top", "5", "--output", file)
	switch {
	case err != nil:
		return err
	case code == exitNotPermitted:
		d.sayf("Sampling is not permitted here; the lines above name what is missing. With it, for example as root, this lists the\n" +
			"spans that use the most CPU time, and writes a profile.")
		return nil
	case code != 0:
		return fmt.Errorf("otelctx record: exit code %d", code)
	}
	d.sayf("Each span is a request to the service, or a part of one. The few requests for more work come first.")
	return nil
}

// explain makes a request hang, and lets otelctx show what the request waits for.
func (d *demo) explain(ctx context.Context, service *child) error {
	url, err := neturl.Parse(service.url)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url.ResolveReference(&neturl.URL{Path: stuckPath}).String(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request) // Do returns with the header, while the request is still running.
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	d.sayf("Most requests do not compute, they wait. One of them is hanging right now. What does it wait for?")
	code, err := d.runOtelctx(ctx, "spans", strconv.Itoa(service.pid), "--name", "stuck", "--stacks")
	switch {
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("otelctx spans: exit code %d", code)
	}
	d.sayf("The service was not stopped. otelctx has read the stack of the waiting goroutine from its memory.")
	return nil
}

// runOtelctx prints a command, runs it, prints its output, and returns its exit code.
func (d *demo) runOtelctx(ctx context.Context, args ...string) (code int, err error) {
	cmd := exec.CommandContext(ctx, d.otelctx, args...) //nolint:gosec // The user says what to run.
	_, _ = fmt.Fprintf(d.out, "\n$ otelctx")
	for _, arg := range args {
		_, _ = fmt.Fprintf(d.out, " %s", arg)
	}
	_, _ = fmt.Fprintln(d.out)
	cmd.Stdout = d.out
	cmd.Stderr = d.out
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// sayf prints a message.
func (d *demo) sayf(format string, args ...any) { sayf(d.out, format, args...) }

func sayf(out io.Writer, format string, args ...any) {
	// Ignore write errors: the demo continues even if nobody reads its output.
	_, _ = fmt.Fprintf(out, "\n"+format+"\n", args...)
}
