// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package advice explains errors: it says why the kernel refuses something, and what would help.
package advice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/launch"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/reader"
)

// Complain prints an error and advice, if there is any. It prints nothing for an [exitcode.StatusError].
func Complain(s terminal.Streams, err error) {
	if errors.As(err, new(exitcode.StatusError)) {
		return
	}
	s.Complainf("%v", err)
	if a := about(err, os.DirFS(procfs.Host().Root())); a != "" {
		_, _ = fmt.Fprintln(s.Stderr, a)
	}
}

// adviser is an error that brings its own advice.
type adviser interface {
	error
	Advice() string
}

// about suggests a remedy for a command's error, or returns "" if it has none. proc is the proc file
// system.
func about(err error, proc fs.FS) string {
	if own, ok := errors.AsType[adviser](err); ok {
		return own.Advice()
	}
	switch {
	case errors.Is(err, reader.ErrNoContext):
		return `A Go service publishes its context by building its TracerProvider with
    resourcepublisher.WithResource(res)
of github.com/otelctx/otelctx/resourcepublisher instead of sdktrace.WithResource(res). If this one does: it may not
have reached that line yet, have shut its publisher down, or run with OTELCTX_PROCESS_CONTEXT_DISABLED=true.`
	case errors.Is(err, reader.ErrNoThreadContext):
		return `A Go service publishes its spans by building its TracerProvider with
    spanctx.WithPublishing()
of github.com/otelctx/otelctx/spanctx. If this one does: it may not have reached that line yet, or have shut its provider
down. otelctx inspect PID shows what the process does publish.`
	case errors.Is(err, sampler.ErrProbeNotPermitted):
		return probeAdvice(proc)
	case errors.Is(err, sampler.ErrNotPermitted):
		return samplingAdvice(proc)
	case errors.Is(err, launch.ErrNotPermitted):
		return `otelctx starts a command stopped, by ptrace, which something forbids here: a seccomp profile, or kernel.yama.ptrace_scope 3.
Start the service yourself, and record it by its process id or --name.`
	case errors.Is(err, reader.ErrNotPermitted):
		return readingAdvice(proc, processerror.PID(err))
	case errors.Is(err, sampler.ErrNoSysfs):
		return "Mount it: mount -t sysfs none /sys. Container runtimes do so by default."
	case errors.Is(err, procfs.ErrNamespace) && !procfs.Host().Foreign():
		return "Or say --proc /proc: list, inspect, watch, spans and record --wall then use the ids of that namespace."
	case errors.Is(err, reader.ErrProcessGone) && procfs.Host().Foreign():
		return "Run otelctx list --proc " + display.Shell(procfs.Host().Root()) + " to see which processes publish, with their ids there."
	case errors.Is(err, reader.ErrProcessGone):
		return `Run otelctx list to see which processes publish. Process ids are those of the PID namespace that otelctx runs in:
outside of a container, use the ids that the host's ps shows.`
	case errors.Is(err, reader.ErrInvalid):
		return `Trying again does not help until the process publishes again. The error says what is wrong with what it published:
report it to the library that the process publishes with.`
	case errors.Is(err, reader.ErrBusy):
		return `Try again. If it fails each time, the process updates its context all the time, or was stopped in the middle of an update.`
	case errors.Is(err, syscall.EMFILE):
		return "The limit of open files is too low. Raise it: ulimit -n 1024"
	case errors.Is(err, syscall.ENOSYS) && runtime.GOOS == "linux":
		return `A system call is missing: a seccomp profile forbids it, as some containers' do, or the kernel was built without it.
Run otelctx with another profile (docker run --security-opt seccomp=unconfined), or on the host.`
	case errors.Is(err, errors.ErrUnsupported):
		return "otelctx reads processes on Linux only. Recording needs Linux 5.10 (arm64: 5.12) with BTF, on amd64 or arm64."
	default:
		return ""
	}
}
