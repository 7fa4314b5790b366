// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Selection says which processes to record. The zero value is every one that publishes a
// process context or spans, from when it does.
type Selection struct {
	// PIDs are processes to record, whatever they publish. With Children their descendants
	// are recorded too, once they are noticed.
	PIDs     []int
	Children bool
	// Names, Services and Cgroups select processes. Those selected have one of the names, are
	// one of the services, and are in one of the control groups. An empty list selects all.
	// With Names or Cgroups processes are recorded whatever they publish. PIDs is empty then.
	Names, Services, Cgroups []string
}

// errNotSelected says that a process is not to be recorded.
var errNotSelected = errors.New("not selected")

// exact reports whether the processes are those of PIDs, and no others.
func (s *Selection) exact() bool { return len(s.PIDs) > 0 && !s.Children }

// publishing reports whether processes are recorded only if they publish.
func (s *Selection) publishing() bool {
	return len(s.PIDs) == 0 && len(s.Names) == 0 && len(s.Cgroups) == 0
}

// selects reports whether a process may be one to record, by what the kernel says of it.
func (s *Selection) selects(pid int) bool {
	if len(s.PIDs) > 0 {
		return s.descends(pid)
	}
	return s.selectsName(pid) && s.selectsCgroup(pid)
}

// selectsPublished reports whether a process is to be recorded, by what it publishes.
func (s *Selection) selectsPublished(p *published) bool {
	return len(s.Services) == 0 || slices.Contains(s.Services, p.service)
}

// selected reports whether a process is selected by what the kernel says of it alone, and whether it
// may be selected once it is known what it publishes.
func (s *Selection) selected(pid int) (selected, maybe bool) {
	maybe = s.selects(pid)
	return maybe && len(s.Services) == 0, maybe
}

// maxGenerations bounds how far descends looks back.
const maxGenerations = 64

// descends reports whether a process is one of PIDs, or a descendant of one.
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
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may have any bytes.
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

// selectsName compares the names that ps, top and pidof know. They are that of the first
// thread, and that of the executable where this user may see it.
func (s *Selection) selectsName(pid int) bool {
	if len(s.Names) == 0 {
		return true
	}
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && slices.Contains(s.Names, strings.TrimSuffix(string(comm), "\n")) {
		return true
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && slices.Contains(s.Names, filepath.Base(strings.TrimSuffix(exe, " (deleted)")))
}

// selectsCgroup compares the control groups that a process is in, and those around them.
func (s *Selection) selectsCgroup(pid int) bool {
	if len(s.Cgroups) == 0 {
		return true
	}
	lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
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

// shortContainerID is how much of a container's id tools show.
const shortContainerID = 12

// inCgroup reports whether path is the control group that is wanted, or in it. The group
// that is wanted is a path, with or without what it is mounted at. It may also be the
// name of a group, or what tools show of a container's id.
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
