// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/reader"
)

// Numbers of capabilities, linux/capability.h.
const (
	capSysPtrace = 19
	capSysAdmin  = 21
	capPerfmon   = 38
	capBPF       = 39
)

// credentials are the properties of a process that decide whether it may read another one, or be read. The
// zero value means unknown.
type credentials struct {
	uids, gids           string // real, effective, saved and file system ids
	effective, permitted uint64 // capabilities
	known                bool
	filtered             bool // by seccomp
}

// credentialsOf returns the credentials of a process, read from /proc/PID/status.
func credentialsOf(proc fs.FS, pid string) (c credentials) {
	status, err := fs.ReadFile(proc, pid+"/status")
	if err != nil {
		return c
	}
	capabilities := func(text string) uint64 {
		set, _ := strconv.ParseUint(text, 16, 64)
		return set
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "Uid":
			c.uids, c.known = value, true
		case "Gid":
			c.gids = value
		case "CapPrm":
			c.permitted = capabilities(value)
		case "Seccomp":
			const filter = "2"
			c.filtered = value == filter
		case "CapEff":
			c.effective = capabilities(value)
		}
	}
	return c
}

// hidepid returns the mount option of the proc file system that hides processes of other users, or "" if it has none.
func hidepid(proc fs.FS) string {
	mounts, err := fs.ReadFile(proc, "self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(mounts)) {
		// ID, parent, device, root, mount point, options, optional fields, "-", type, source, options of the type
		mount, fileSystem, _ := strings.Cut(line, " - ")
		fields, options := strings.Fields(mount), strings.Fields(fileSystem)
		if len(fields) < 5 || fields[4] != procfs.Host().Root() || len(options) < 3 || options[0] != "proc" {
			continue
		}
		for option := range strings.SplitSeq(options[2], ",") {
			if strings.HasPrefix(option, "hidepid=") && option != "hidepid=0" && option != "hidepid=off" {
				return option
			}
		}
	}
	return ""
}

func (c *credentials) root() bool {
	uids := strings.Fields(c.uids)
	return len(uids) > 1 && uids[1] == "0"
}

func (c *credentials) can(capability int) bool { return c.effective&(1<<capability) != 0 }

// canSample reports whether the process has the capabilities that sampling needs, which otelctx
// makes effective only while it needs them.
func (c *credentials) canSample() bool {
	const both = 1<<capBPF | 1<<capPerfmon
	return c.permitted&both == both || c.permitted&(1<<capSysAdmin) != 0
}

// readingAdvice says why the kernel does not let otelctx read a process, and what would help. The text is
// the same for all processes that cannot be read for the same reason.
func readingAdvice(proc fs.FS, pid int) string {
	self, other := credentialsOf(proc, "self"), credentialsOf(proc, strconv.Itoa(pid))
	yama, hides := yamaScope(proc), hidepid(proc)
	switch {
	case yama == "3":
		return "kernel.yama.ptrace_scope is 3: no process may read another one until the machine restarts."
	case self.can(capSysPtrace):
		return `otelctx has CAP_SYS_PTRACE, so neither root nor more capabilities help. A security module (SELinux, AppArmor, a BPF LSM)
or a seccomp profile refuses this, as the kernel's log may say (journalctl -k), or otelctx runs in a container or user
namespace that the process is not in: run it on the host.`
	case self.root():
		return `otelctx runs as root, but without CAP_SYS_PTRACE, as is usual in containers. Give the container that capability
(docker run --cap-add SYS_PTRACE, or capabilities.add in Kubernetes' securityContext), or run otelctx on the host.`
	case !other.known && hides != "":
		return hiddenAdvice(hides)
	case !other.known:
		return "The process belongs to another user, or protects its memory. Run otelctx as root (sudo)."
	case other.uids != sameFour(self.uids) || other.gids != sameFour(self.gids):
		return "Processes of other users can be read only by root (sudo otelctx), or with CAP_SYS_PTRACE."
	case yama == "1":
		return `kernel.yama.ptrace_scope is 1: processes of the same user can be read only by their parents. Run otelctx as root (sudo), or
let users read their own processes: sudo sysctl kernel.yama.ptrace_scope=0`
	case yama != "" && yama != "0":
		return "kernel.yama.ptrace_scope is " + display.Escape(yama) + ": processes can be read only with CAP_SYS_PTRACE. Run otelctx as root (sudo)."
	case other.permitted&^self.permitted != 0:
		return "The process has capabilities that otelctx does not have. Run otelctx as root (sudo)."
	case self.filtered:
		return "A seccomp profile, as containers have, may forbid process_vm_readv here. If not, the process protects its memory: " + protection
	default:
		return "The process protects its memory: " + protection
	}
}

// protection lists why a process of the same user cannot be read.
const protection = `its file has capabilities or a set-user-id bit, is not readable, or it called
prctl(PR_SET_DUMPABLE, 0). Run otelctx as root (sudo).`

// sameFour returns the ids that a process must have to be readable for a reader with the given ids: the reader's
// file system id, four times.
func sameFour(ids string) string {
	fields := strings.Fields(ids)
	if len(fields) != 4 {
		return ids
	}
	return strings.Join([]string{fields[3], fields[3], fields[3], fields[3]}, "\t")
}

// yamaScope returns the ptrace_scope of the Yama security module, or "" if the kernel does not have it.
// Documentation/admin-guide/LSM/Yama.rst of the kernel describes its modes.
func yamaScope(proc fs.FS) string { return setting(proc, "yama/ptrace_scope") }

// setting returns a setting of the kernel, or "" if there is none.
func setting(proc fs.FS, name string) string {
	b, err := fs.ReadFile(proc, "sys/kernel/"+name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// setcapText is the command that allows ordinary users to record.
const setcapText = `    sudo setcap cap_bpf,cap_perfmon+ep "$(command -v otelctx)"`

// samplingAdvice says why the kernel does not let otelctx sample, and what would help.
func samplingAdvice(proc fs.FS) string {
	self := credentialsOf(proc, "self")
	paranoid, _ := strconv.Atoi(setting(proc, "perf_event_paranoid"))
	switch {
	case paranoid > 2 && !self.root():
		return fmt.Sprintf(`kernel.perf_event_paranoid is %d. Above 2 the kernels of Debian and Ubuntu let only root sample (CAP_SYS_ADMIN):
run sudo otelctx, or set it to 2: sudo sysctl kernel.perf_event_paranoid=2`, paranoid)
	case self.canSample():
		return `otelctx has these capabilities, so neither root nor more of them help: run it outside of user namespaces and of containers
whose seccomp profile forbids bpf and perf_event_open, on a kernel that is not locked down.`
	case self.root():
		return `otelctx runs as root, but in a container without these capabilities. Give them to the container (docker run --cap-add BPF
--cap-add PERFMON --cap-add SYS_PTRACE, or capabilities.add in Kubernetes' securityContext), or run otelctx on the host.`
	default:
		return "Run it as root (sudo otelctx), or give the capabilities to its file, if it was built without cgo (CGO_ENABLED=0):\n" + setcapText + `
Each user can then record the processes that they may trace. Those of other users need root.`
	}
}

// probeAdvice says what helps if otelctx lacks CAP_SYS_ADMIN, which only root should have.
func probeAdvice(proc fs.FS) string {
	if self := credentialsOf(proc, "self"); self.root() {
		return `otelctx runs as root, but in a container without this capability. Give it to the container (docker run --cap-add SYS_ADMIN
--cap-add SYS_PTRACE, or capabilities.add in Kubernetes' securityContext), or run otelctx on the host.`
	}
	return "Run it as root (sudo otelctx). CAP_BPF and CAP_PERFMON are enough only for CPU time."
}

// maxNamed is the maximum number of processes that a message names.
const maxNamed = 8

// Hidden says that users see only their own processes, if that is the case.
func Hidden(s terminal.Streams) {
	proc := os.DirFS(procfs.Host().Root())
	if self := credentialsOf(proc, "self"); hidepid(proc) != "" && !self.can(capSysPtrace) {
		s.Complainf("the list has only the processes of this user")
		_, _ = fmt.Fprintln(s.Stderr, hiddenAdvice(hidepid(proc)))
	}
}

func hiddenAdvice(option string) string {
	return procfs.Host().Root() + " is mounted with " + display.Escape(option) + " (systemd: ProtectProc=), which hides the processes of other users. Run otelctx as root (sudo)."
}

// Unread prints which processes could not be read, and why.
func Unread(s terminal.Streams, unread []error) {
	proc := os.DirFS(procfs.Host().Root())
	refused := map[string][]*processerror.Error{}
	var reasons []string
	for _, err := range unread {
		p, ok := errors.AsType[*processerror.Error](err)
		if !ok || !errors.Is(err, reader.ErrNotPermitted) {
			s.Complainf("%v", err)
			continue
		}
		if _, err := fs.Stat(proc, strconv.Itoa(p.PID)); errors.Is(err, fs.ErrNotExist) {
			continue // It has ended since, which is no surprise.
		}
		reason := readingAdvice(proc, p.PID)
		if refused[reason] == nil {
			reasons = append(reasons, reason)
		}
		refused[reason] = append(refused[reason], p)
	}
	for _, reason := range reasons {
		all := refused[reason]
		var names []string
		for _, err := range all[:min(len(all), maxNamed)] {
			names = append(names, err.Process())
		}
		text := strings.Join(names, ", ")
		if more := len(all) - maxNamed; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		_, why, _ := strings.Cut(all[0].Error(), reader.ErrNotPermitted.Error()+": ")
		if len(all) == 1 {
			s.Complainf("not permitted to read process %s: %s", text, why)
		} else {
			s.Complainf("not permitted to read %d processes (%s): %s", len(all), why, text)
		}
		if self := credentialsOf(proc, "self"); !self.can(capSysPtrace) { // Otherwise nothing helps.
			_, _ = fmt.Fprintln(s.Stderr, reason)
		}
	}
}
