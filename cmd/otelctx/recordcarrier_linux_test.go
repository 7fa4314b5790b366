// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
)

// TestRecordInPIDNamespace checks that the spans and thread ids of a service in its own PID namespace are right.
// In that namespace, the service's threads have other ids than those that otelctx sees.
func TestRecordInPIDNamespace(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a PID namespace needs CAP_SYS_ADMIN")
	}
	needSampling(t)
	c := startBusyService(t, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	}, busyservice.Records, busyservice.ThreadSlots) // arm64 needs both carriers
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	recorded(t, c, "--output", file)
	assertTrue(t, file)
	for _, s := range readPprof(t, file).Sample {
		require.Len(t, s.NumLabel["thread.id"], 1)
		require.DirExists(t, fmt.Sprintf("/proc/%d/task/%d", c.PID(), s.NumLabel["thread.id"][0]))
	}
}

// TestRecordByCarrier checks that spans come from the carrier selected with --carrier. While another library sets
// labels, --carrier=labels finds that library's trace, and the other carriers the service's trace. A
// service with goroutine records sets labels itself, so the test of foreign labels uses a service without them.
func TestRecordByCarrier(t *testing.T) {
	t.Parallel()
	needSampling(t)
	service := []string{busyservice.Records, busyservice.GoroutineTable, busyservice.ThreadSlots}
	for name, test := range map[string]struct {
		carrier string
		words   []string
		// found reports whether spans are expected, and foreign whether they belong to the other
		// library's trace.
		found, foreign bool
		stderr         string
	}{
		"labels":                         {"labels", service, true, false, ""},
		"labels of another library":      {"labels", []string{busyservice.ThreadSlots, busyservice.Foreign}, true, true, ""},
		"goroutine table":                {"goroutine_table", append(service, busyservice.Foreign), true, false, ""},
		"a carrier that is not there":    {"goroutine_table", []string{busyservice.Records}, false, false, "no spans by goroutine_table: the process does not have this carrier"},
		"the best one, beside of others": {"", append(service, busyservice.Foreign), true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := startBusyService(t, nil, test.words...)
			file := filepath.Join(t.TempDir(), "profile.pb.gz")
			d, got := recorded(t, c, "--carrier="+test.carrier, "--output", file)
			assert.Equal(t, test.found, d.Attributed > 30, d.Attributed)
			assert.Zero(t, d.Unproven)
			if test.stderr == "" {
				assert.Empty(t, got.complaints())
			} else {
				assert.Contains(t, got.stderr, test.stderr)
			}
			for _, u := range d.Spans {
				assert.Equal(t, test.foreign, u.TraceID == busyservice.ForeignTrace.String(), u.TraceID)
			}
			if !test.found {
				assert.Zero(t, d.Attributed)
			} else {
				assertTrue(t, file)
			}
		})
	}
}
