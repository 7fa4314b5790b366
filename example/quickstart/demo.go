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

// demo shows a service to another process and says what happens.
type demo struct {
	out io.Writer
	// otelctx is the command to run.
	otelctx string
	// fallback shows what can be shown where otelctx may not read the service.
	fallback fallback
	// profile is the file to record to, "" for one in a new directory.
	profile  string
	duration time.Duration
}

// runDemo runs the demo with the otelctx command of that name or path. otelctx records
// for that long to the file profile, or if that is "" to one in a new directory.
func runDemo(ctx context.Context, out io.Writer, otelctx, profile string, duration time.Duration) error {
	path, err := exec.LookPath(otelctx)
	if err != nil {
		return fmt.Errorf("no otelctx command (%w): build it in cmd/otelctx and say where it is by -otelctx", err)
	}
	d := &demo{out: out, otelctx: path, fallback: newFallback(out), profile: profile, duration: duration}
	return d.run(ctx)
}

// requestsBefore is how many requests the service has served before it is looked at.
const requestsBefore = 50

// run returns an error if the service, or reading it, failed; not if the kernel
// forbids to read it.
func (d *demo) run(ctx context.Context) (err error) {
	d.sayf(`A service starts. It publishes its OpenTelemetry resource while its TracerProvider is built.`)
	service, err := startService(ctx)
	if err != nil {
		return err
	}
	defer func() {
		d.sayf("The service ends. Its context goes with it.")
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

	d.sayf("Another process, which knows nothing about the service, looks for what publishes on this host:")
	code, err := d.runOtelctx(ctx, "list")
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("otelctx list: exit code %d", code)
	}

	d.sayf("It reads the one that it wants to know more of, as a profiler does before it samples it:")
	code, err = d.runOtelctx(ctx, "inspect", strconv.Itoa(service.pid))
	switch {
	case err != nil:
		return err
	case code == exitNotPermitted:
		return d.fallback.show(ctx, service.pid)
	case code != 0:
		return fmt.Errorf("otelctx inspect: exit code %d", code)
	}
	d.sayf("All this was read out of the service's memory, while it was at work and without its help: no port, no\n" +
		"collector, no file. A profiler puts it on every sample of the process.")
	if err := d.record(ctx, service.pid); err != nil {
		return err
	}
	return d.explain(ctx, service)
}

// exitNotPermitted is the exit code of otelctx where the kernel forbids what it is to do.
const exitNotPermitted = 4

// record records what the service uses the processor for. That this is not permitted is
// no error.
func (d *demo) record(ctx context.Context, pid int) error {
	file := d.profile
	if file == "" {
		dir, err := os.MkdirTemp("", "quickstart-")
		if err != nil {
			return err
		}
		// Nothing is left behind but a profile.
		defer func() { _ = os.Remove(dir) }()
		file = filepath.Join(dir, "profile.pb.gz")
	}
	d.sayf("Such a profiler is otelctx itself. It samples the service for %v: which spans use the processor?", d.duration)
	code, err := d.runOtelctx(ctx, "record", strconv.Itoa(pid), "--duration", d.duration.String(), "--freq", "997",
		"--top", "5", "--output", file)
	switch {
	case err != nil:
		return err
	case code == exitNotPermitted:
		d.sayf("Sampling is not permitted here; what is missing stands above. With it, as root for one, this shows the\n" +
			"spans that use most of the processor, and writes a profile to look at.")
		return nil
	case code != 0:
		return fmt.Errorf("otelctx record: exit code %d", code)
	}
	d.sayf("Each span is a request to the service, or a part of one. A few ask for more than the others: here they are.")
	return nil
}

// explain has a request hang, and shows what it waits for.
func (d *demo) explain(ctx context.Context, service *child) error {
	url, err := neturl.Parse(service.url)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url.ResolveReference(&neturl.URL{Path: stuckPath}).String(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request) // It returns with the header: the request is at work.
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	d.sayf("Most requests do not compute, they wait. One of them hangs just now. What does it wait for?")
	code, err := d.runOtelctx(ctx, "spans", strconv.Itoa(service.pid), "--name", "stuck", "--stacks")
	switch {
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("otelctx spans: exit code %d", code)
	}
	d.sayf("The service was neither stopped nor asked. otelctx has read the stack of the waiting goroutine in its memory.")
	return nil
}

// runOtelctx shows and runs a command, and what it says, and returns its exit code.
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

// sayf tells the user something.
func (d *demo) sayf(format string, args ...any) { sayf(d.out, format, args...) }

func sayf(out io.Writer, format string, args ...any) {
	// A demo that nobody sees need not fail.
	_, _ = fmt.Fprintf(out, "\n"+format+"\n", args...)
}
