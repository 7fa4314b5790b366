// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/exitcode"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/reader"
)

// TestPermissionAdvice checks that the advice for a permission error fits the privileges of otelctx and of the
// process that it reads, and that root is never advised to use sudo.
func TestPermissionAdvice(t *testing.T) {
	const (
		none    = "0000000000000000"
		ptrace  = "0000000000080000"
		sample  = "000000c000000000"
		admin   = "0000000000200000"
		allCaps = "000001ffffffffff"
	)
	const mountinfo = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n24 22 0:22 / /proc rw,nosuid shared:5 - proc none rw,%s\n"
	status := func(uid, effective, permitted string) string {
		return "Name:\tx\nUid:\t" + strings.Repeat(uid+"\t", 3) + uid + "\nGid:\t7\t7\t7\t7\nCapPrm:\t" + permitted + "\nCapEff:\t" + effective + "\n"
	}
	for name, test := range map[string]struct {
		self, other, yama, paranoid string
		mounts                      string // options of /proc
		reading, sampling, probe    string
	}{
		"root":                     {self: status("0", allCaps, allCaps), reading: "neither root nor more capabilities help", sampling: "neither root nor more of them help"},
		"root in a container":      {self: status("0", none, none), reading: "as root, but without CAP_SYS_PTRACE", sampling: "as root, but in a container", probe: "--cap-add SYS_ADMIN"},
		"root that may sample":     {self: status("0", admin, admin), reading: "as root, but without CAP_SYS_PTRACE", sampling: "neither root"},
		"Yama forbids all":         {self: status("0", allCaps, allCaps), yama: "3\n", reading: "ptrace_scope is 3: no process"},
		"a user with CAP":          {self: status("7", ptrace, ptrace), other: status("8", none, none), reading: "neither root"},
		"another user's":           {self: status("7", none, none), other: status("8", none, none), yama: "1\n", reading: "Processes of other users", sampling: "sudo setcap", probe: "as root (sudo otelctx)"},
		"Yama":                     {self: status("7", none, none), other: status("7", none, none), yama: "1\n", reading: "sysctl kernel.yama.ptrace_scope=0"},
		"Yama 2":                   {self: status("7", none, none), other: status("7", none, none), yama: "2\n", reading: "ptrace_scope is 2: "},
		"an unknown mode":          {self: status("7", none, none), other: status("7", none, none), yama: "\x1b9\n", reading: `ptrace_scope is \x1b9: `},
		"more than otelctx":        {self: status("7", none, none), other: status("7", none, ptrace), yama: "0\n", reading: "has capabilities that otelctx does not have"},
		"not dumpable":             {self: status("7", none, none), other: status("7", none, none), reading: "PR_SET_DUMPABLE"},
		"gone, and nothing known":  {self: status("7", none, none), reading: "belongs to another user, or protects its memory. Run otelctx as root"},
		"hidden by /proc":          {self: status("7", none, none), mounts: "hidepid=invisible", reading: "mounted with hidepid=invisible (systemd: ProtectProc=)"},
		"hidepid=0":                {self: status("7", none, none), mounts: "hidepid=0", reading: "belongs to another user"},
		"a seccomp filter":         {self: status("7", none, none) + "Seccomp:\t2\n", other: status("7", none, none), reading: "seccomp profile"},
		"Debian's default":         {self: status("7", none, sample), paranoid: "3\n", sampling: "perf_event_paranoid is 3. "},
		"Debian's default as root": {self: status("0", allCaps, allCaps), paranoid: "3\n", sampling: "neither root"},
		"the kernel's default":     {self: status("7", none, none), paranoid: "2\n", sampling: "CGO_ENABLED=0"},
		"by the file":              {self: status("7", none, sample), paranoid: "2\n", sampling: "neither root", probe: "as root (sudo otelctx)"},
	} {
		t.Run(name, func(t *testing.T) {
			proc := fstest.MapFS{}
			for path, content := range map[string]string{
				"self/status": test.self, "12/status": test.other,
				"self/mountinfo":               fmt.Sprintf(mountinfo, test.mounts),
				"sys/kernel/yama/ptrace_scope": test.yama, "sys/kernel/perf_event_paranoid": test.paranoid,
			} {
				if content != "" {
					proc[path] = &fstest.MapFile{Data: []byte(content)}
				}
			}
			root := strings.HasPrefix(test.self, status("0", "", "")[:20])
			for err, want := range map[error]string{
				processerror.New(12, reader.ErrNotPermitted): test.reading,
				sampler.ErrNotPermitted:                      test.sampling,
				sampler.ErrProbeNotPermitted:                 test.probe,
			} {
				got := about(err, proc)
				assert.Contains(t, got, want)
				assert.False(t, root && strings.Contains(got, "sudo"), got)
				assert.False(t, errors.Is(err, sampler.ErrProbeNotPermitted) && strings.Contains(got, "setcap"), got)
			}
		})
	}
}

func TestUnsupportedPlatform(t *testing.T) {
	err := fmt.Errorf("reader: %w", errors.ErrUnsupported)
	assert.Equal(t, exitcode.Other, exitcode.Of(err))
	assert.Contains(t, about(err, fstest.MapFS{}), "Linux")
}

// TestUnreadHasEnded checks that a process that has ended since it could not be read is not reported.
func TestUnreadHasEnded(t *testing.T) {
	var stderr strings.Builder
	Unread(terminal.Streams{Stderr: &stderr}, []error{processerror.New(math.MaxInt32, reader.ErrNotPermitted)})
	assert.Empty(t, stderr.String())
}
