// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/launch"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/reader"
)

// advice returns what to do about an error of a command, or "" if the error says it
// all. proc is the proc file system.
func advice(err error, proc fs.FS) string {
	switch {
	case errors.Is(err, reader.ErrNoContext):
		return `A Go service publishes its context by building its TracerProvider with
    resourcepublisher.WithResource(res)
of github.com/otelctx/otelctx/resourcepublisher in place of sdktrace.WithResource(res). If this one does: it may not
have come to that yet, have shut its publisher down, or be running with OTELCTX_PROCESS_CONTEXT_DISABLED=true.`
	case errors.Is(err, reader.ErrNoThreadContext):
		return `A Go service shows its spans by building its TracerProvider with
    spanctx.WithPublishing()
of github.com/otelctx/otelctx/spanctx. If this one does: it may not have come to that yet, or have shut its provider
down. Run otelctx inspect to see what the process says of itself.`
	case errors.Is(err, sampler.ErrNotPermitted):
		return samplingAdvice(proc)
	case errors.Is(err, reader.ErrNotPermitted), errors.Is(err, launch.ErrNotPermitted):
		return permissionAdvice(proc)
	case errors.Is(err, reader.ErrProcessGone):
		return `Run otelctx list to see which processes publish. Process ids are those of the PID namespace that otelctx runs in:
a container's own ids mean nothing outside of it.`
	case errors.Is(err, reader.ErrInvalid):
		return `Trying again is of no use until the process publishes anew: the library that published this, or something that
wrote over its memory, is at fault.`
	case errors.Is(err, reader.ErrBusy):
		return `Try again. If that goes on, the process updates its context all the time, or stopped in the midst of an update.`
	case errors.Is(err, syscall.EMFILE):
		return "The limit of open files is too low. Raise it: ulimit -n 1024"
	case errors.Is(err, errors.ErrUnsupported):
		return "Process contexts can only be read on Linux, and recorded there from 5.10 on (arm64: 5.12), with BTF, on amd64 and arm64."
	default:
		return ""
	}
}

// permissionAdvice returns what reading other processes needs.
func permissionAdvice(proc fs.FS) string {
	return `Reading a process needs the capability CAP_SYS_PTRACE, which root has (try sudo), or the same user as the
process, if Yama allows that. ` + yamaState(proc)
}

// samplingAdvice returns what recording needs.
func samplingAdvice(proc fs.FS) string {
	return `Recording needs the capabilities CAP_BPF and CAP_PERFMON. Root has them (try sudo), or give them to the command:
    sudo setcap cap_bpf,cap_perfmon+ep "$(command -v otelctx)"
With these each user records the processes that they may trace; those of others need root, whatever else the file has. In a
container they are to be given to the container, and count if that is not in a user namespace of its own. ` + "\n" + paranoia(proc) + permissionAdvice(proc)
}

// paranoia says what more recording takes where the kernel.perf_event_paranoid setting is
// one that Debian and its kin have added to the kernel's, or nothing.
func paranoia(proc fs.FS) string {
	const name = "sys/kernel/perf_event_paranoid"
	b, err := fs.ReadFile(proc, name)
	if err != nil {
		return ""
	}
	setting := strings.TrimSpace(string(b))
	if n, err := strconv.Atoi(setting); err != nil || n <= 2 {
		return ""
	}
	return "/proc/" + name + " is " + setting + `, of which the kernels of Debian and Ubuntu make that CAP_PERFMON does not count: there it needs root
(CAP_SYS_ADMIN), or to set it to 2.
`
}

// yamaState says what the Yama security module does to processes of the same user.
// Documentation/admin-guide/LSM/Yama.rst of the kernel describes its modes.
func yamaState(proc fs.FS) string {
	const name = "/proc/sys/kernel/yama/ptrace_scope"
	b, err := fs.ReadFile(proc, "sys/kernel/yama/ptrace_scope")
	if errors.Is(err, fs.ErrNotExist) {
		return "There is no " + name + ": Yama does not restrict that here."
	}
	if err != nil {
		return name + " would say how far, but cannot be read."
	}
	scope := strings.TrimSpace(string(b))
	state := name + " is " + escape(scope) + ": "
	switch scope {
	case "0":
		return state + "the same user is enough, unless the process has dropped or gained privileges."
	case "1":
		return state + "the same user may read only descendants of its own. Setting it to 0 lifts that."
	case "2":
		return state + "only CAP_SYS_PTRACE counts."
	case "3":
		return state + "nobody may read, whatever their capabilities, until the machine is restarted."
	default:
		return state + "a mode that otelctx does not know."
	}
}
