// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/reader"
)

func TestPermissionAdviceNamesThePtraceScope(t *testing.T) {
	for scope, want := range map[string]string{
		"":        "There is no /proc/sys/kernel/yama/ptrace_scope",
		"0\n":     "ptrace_scope is 0: the same user is enough",
		"1\n":     "ptrace_scope is 1: the same user may read only descendants",
		"2\n":     "ptrace_scope is 2: only CAP_SYS_PTRACE",
		"3\n":     "ptrace_scope is 3: nobody",
		"\x1b9\n": `ptrace_scope is \x1b9: a mode that otelctx does not know`,
	} {
		proc := fstest.MapFS{}
		if scope != "" {
			proc["sys/kernel/yama/ptrace_scope"] = &fstest.MapFile{Data: []byte(scope)}
		}
		got := advice(fmt.Errorf("pid 1: %w", reader.ErrNotPermitted), proc)
		assert.Contains(t, got, "CAP_SYS_PTRACE")
		assert.Contains(t, got, "same user")
		assert.Contains(t, got, want)
	}
}

func TestPermissionAdviceWhenTheScopeCannotBeRead(t *testing.T) {
	proc := fstest.MapFS{"sys/kernel/yama/ptrace_scope": {Mode: fs.ModeDir}} // A directory cannot.
	assert.Contains(t, permissionAdvice(proc), "cannot be read")
}

func TestSamplingAdviceNamesTheParanoia(t *testing.T) {
	for setting, named := range map[string]bool{"": false, "-1\n": false, "2\n": false, "3\n": true, "4\n": true, "none\n": false} {
		proc := fstest.MapFS{}
		if setting != "" {
			proc["sys/kernel/perf_event_paranoid"] = &fstest.MapFile{Data: []byte(setting)}
		}
		got := advice(fmt.Errorf("open: %w", sampler.ErrNotPermitted), proc)
		assert.Contains(t, got, "CAP_PERFMON")
		if named {
			assert.Contains(t, got, "/proc/sys/kernel/perf_event_paranoid is "+strings.TrimSpace(setting)+", ")
		} else {
			assert.NotContains(t, got, "perf_event_paranoid")
		}
	}
}

func TestUnsupportedPlatform(t *testing.T) {
	err := fmt.Errorf("reader: %w", errors.ErrUnsupported)
	assert.Equal(t, exitOther, exitCode(err))
	assert.Contains(t, advice(err, fstest.MapFS{}), "Linux")
}

func TestTooManyOpenFiles(t *testing.T) {
	err := fmt.Errorf("load the BPF program: %w", syscall.EMFILE)
	assert.Equal(t, exitOther, exitCode(err))
	assert.Contains(t, advice(err, fstest.MapFS{}), "ulimit -n")
}
