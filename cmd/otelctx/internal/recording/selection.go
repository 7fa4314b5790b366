// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/internal/procfs"
)

// Selection selects the processes to record. The zero value selects every process that publishes a process
// context or spans, as soon as it does.
type Selection struct {
	// PIDs selects processes, whatever they publish. Children also selects their descendants, as soon as
	// they are detected.
	PIDs     []int
	Children bool
	// Names, Services and Cgroups select processes that have one of the names, belong to one of the
	// services and are in one of the cgroups. An empty list selects all. With Names or Cgroups, processes
	// are recorded even if they publish nothing. These lists cannot be combined with PIDs.
	Names, Services, Cgroups []string
}

// errNotSelected is returned for a process that is not selected.
var errNotSelected = errors.New("not selected")

// exact reports whether exactly the processes of PIDs are selected.
func (s *Selection) exact() bool { return len(s.PIDs) > 0 && !s.Children }

// publishing reports whether processes are recorded only if they publish.
func (s *Selection) publishing() bool {
	return len(s.PIDs) == 0 && len(s.Names) == 0 && len(s.Cgroups) == 0
}

// selects reports whether a process matches PIDs, Names and Cgroups. It does not check the service.
func (s *Selection) selects(pid int) bool {
	if len(s.PIDs) > 0 {
		return s.descends(pid)
	}
	return s.selectsName(pid) && s.selectsCgroup(pid)
}

// SelectsPublisher reports whether a process that publishes is selected. service is its service name.
func (s *Selection) SelectsPublisher(pid int, service string) bool {
	return s.selects(pid) && s.selectsService(service)
}

func (s *Selection) selectsService(service string) bool {
	return len(s.Services) == 0 || slices.Contains(s.Services, service)
}

// selected judges a process without reading what it publishes. selected reports whether the process is
// certainly selected, and maybe whether it could be.
func (s *Selection) selected(pid int) (selected, maybe bool) {
	maybe = s.selects(pid)
	return maybe && len(s.Services) == 0, maybe
}

// maxGenerations bounds the ancestors that descends checks.
const maxGenerations = 64

// descends reports whether a process is one of PIDs or, with Children, a descendant of one.
func (s *Selection) descends(pid int) bool {
	for range maxGenerations {
		if slices.Contains(s.PIDs, pid) {
			return true
		}
		if !s.Children || pid <= 1 {
			return false
		}
		pid = parentOf(pid)
	}
	return false
}

// parentOf returns the id of a process's parent, 0 if there is none.
func parentOf(pid int) int {
	stat, err := os.ReadFile(procfs.Host().Path(pid, "stat"))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may contain any bytes.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}

// selectsName reports whether Names has the name of the process's first thread or of its executable. ps, top
// and pidof show these names. The executable is ignored if this user may not read its path.
func (s *Selection) selectsName(pid int) bool {
	if len(s.Names) == 0 {
		return true
	}
	if comm, err := os.ReadFile(procfs.Host().Path(pid, "comm")); err == nil && slices.Contains(s.Names, strings.TrimSuffix(string(comm), "\n")) {
		return true
	}
	exe, err := os.Readlink(procfs.Host().Path(pid, "exe"))
	return err == nil && slices.Contains(s.Names, filepath.Base(strings.TrimSuffix(exe, " (deleted)")))
}

// selectsCgroup reports whether a process is in one of Cgroups or below.
func (s *Selection) selectsCgroup(pid int) bool {
	if len(s.Cgroups) == 0 {
		return true
	}
	lines, err := os.ReadFile(procfs.Host().Path(pid, "cgroup"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(lines)) {
		// hierarchy:controllers:path
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) == 3 && slices.ContainsFunc(s.Cgroups, func(want string) bool { return inCgroup(fields[2], want) }) {
			return true
		}
	}
	return false
}

// shortContainerID is the length of the shortened container ids that tools show.
const shortContainerID = 12

// inCgroup reports whether path is the wanted cgroup or below it. want is a path, with or without the mount
// point, the name of a group, or a container id, shortened or not.
func inCgroup(path, want string) bool {
	if rest, mounted := strings.CutPrefix(want, "/sys/fs/cgroup"); mounted {
		want = rest
	}
	if want == "" || strings.HasPrefix(want, "/") {
		want = strings.TrimSuffix(want, "/")
		return path == want || strings.HasPrefix(path, want+"/")
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == want || isContainerID(want) && strings.Contains(name, want) {
			return true
		}
	}
	return false
}

func isContainerID(s string) bool {
	return len(s) >= shortContainerID && strings.Trim(s, "0123456789abcdef") == ""
}
