// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/foreigncontext"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// noMmap makes the publisher's mmap call fail. It recognizes the call by its length argument: a
// header, padded to twice its size, and two payload buffers.
var noMmap = childproc.NoMmap(2 * (wire.ProcessContextHeaderSize + wire.MaxProcessContextPayload))

// kernelNamesMappings reports whether the kernel can name mappings (CONFIG_ANON_VMA_NAME).
func kernelNamesMappings(t *testing.T) bool {
	t.Helper()
	region, err := vma.New("otelctx-probe", 1)
	require.NoError(t, err)
	defer region.Close()
	_ = region.Announce()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Contains(string(maps), "[anon_shmem:otelctx-probe]")
}

func TestPublishingUnderSystemCallFilters(t *testing.T) {
	named := kernelNamesMappings(t)
	withoutNames := map[bool]string{false: "kernel without CONFIG_ANON_VMA_NAME: an anonymous mapping has no name"}[named]
	tests := map[string]struct {
		rules []childproc.Rule
		// wantErr is a part of the expected error, or empty if publishing must succeed.
		wantErr string
		// wantName is the expected name of the mapping if publishing succeeds.
		wantName string
		// variable is an environment variable of the process, KEY=value.
		variable string
		// foreign says that another library has published a context.
		foreign bool
		skip    string
	}{
		"nothing denied": {wantName: map[bool]string{false: "/memfd:OTEL_CTX (deleted)", true: "[anon_shmem:OTEL_CTX]"}[named]},
		"naming denied":  {rules: []childproc.Rule{childproc.NoNaming}, wantName: "/memfd:OTEL_CTX (deleted)"},
		"memfd denied": {
			rules: []childproc.Rule{childproc.NoMemfd}, wantName: "[anon:OTEL_CTX]",
			skip: withoutNames,
		},
		"memfd and naming denied":   {rules: []childproc.Rule{childproc.NoMemfd, childproc.NoNaming}, wantErr: "memfd_create: operation not permitted; prctl PR_SET_VMA_ANON_NAME: invalid argument"},
		"memfd cannot be sized":     {rules: []childproc.Rule{childproc.NoFtruncate, childproc.NoNaming}, wantErr: "ftruncate memfd: operation not permitted; prctl"},
		"MFD_NOEXEC_SEAL unknown":   {rules: []childproc.Rule{childproc.NoNoexecSeal, childproc.NoNaming}, wantName: "/memfd:OTEL_CTX (deleted)"},
		"MFD_NOEXEC_SEAL denied":    {rules: []childproc.Rule{childproc.DeniedNoexecSeal, childproc.NoNaming}, wantName: "/memfd:OTEL_CTX (deleted)"},
		"madvise denied":            {rules: []childproc.Rule{childproc.NoDontfork}, wantErr: "madvise MADV_DONTFORK: permission denied"},
		"madvise denied, no memfd":  {rules: []childproc.Rule{childproc.NoDontfork, childproc.NoMemfd}, wantErr: "madvise MADV_DONTFORK: permission denied"},
		"mmap denied":               {rules: []childproc.Rule{noMmap}, wantErr: "cannot allocate memory"},
		"mmap denied, no memfd":     {rules: []childproc.Rule{noMmap, childproc.NoMemfd}, wantErr: "cannot allocate memory"},
		"clock denied":              {rules: []childproc.Rule{childproc.NoBoottime}, wantErr: "CLOCK_BOOTTIME: operation not permitted"},
		"own memory cannot be read": {rules: []childproc.Rule{childproc.NoReadv, childproc.NoNaming}, wantName: "/memfd:OTEL_CTX (deleted)"},
		"memfd kills, and is disabled": {
			rules: []childproc.Rule{{Call: unix.SYS_MEMFD_CREATE, Kill: true}}, variable: "OTELCTX_MEMFD_DISABLED=true", wantName: "[anon:OTEL_CTX]",
			skip: withoutNames,
		},
		"memfd kills, and is disabled, naming denied": {
			rules: []childproc.Rule{{Call: unix.SYS_MEMFD_CREATE, Kill: true}, childproc.NoNaming}, variable: "OTELCTX_MEMFD_DISABLED=true",
			wantErr: "mapping cannot be named: memfd: disabled by OTELCTX_MEMFD_DISABLED; prctl PR_SET_VMA_ANON_NAME: invalid argument",
		},
		"seals denied": {
			rules:    []childproc.Rule{childproc.NoNaming, {Call: unix.SYS_FCNTL, Errno: unix.EPERM, Args: []childproc.Arg{{Index: 1, Mask: ^uint32(0), Value: unix.F_ADD_SEALS}}}},
			wantName: "/memfd:OTEL_CTX (deleted)",
		},
		"reading memory kills, beside another library": {
			rules: []childproc.Rule{{Call: unix.SYS_PROCESS_VM_READV, Kill: true}}, foreign: true, wantErr: "process context is published by another library",
		},
		"memfd denied, kernel unnamed": {rules: []childproc.Rule{childproc.NoMemfd, childproc.NoNaming, childproc.NoReadv}, wantErr: "mapping cannot be named"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.skip != "" {
				t.Skip(tt.skip)
			}
			child := startPublishing(t, tt.rules, func(cmd *exec.Cmd) {
				if tt.variable != "" {
					cmd.Env = append(cmd.Env, tt.variable)
				}
				if tt.foreign {
					cmd.Env = append(cmd.Env, foreignVariable+"=1")
				}
			})
			fds := child.Receive()
			got := child.Receive()
			if tt.wantErr != "" {
				assert.Contains(t, got, tt.wantErr)
				if !tt.foreign {
					assert.Empty(t, contextMappings(t, child.PID()), "nothing is left behind")
				}
			} else {
				assert.Equal(t, "published", got)
				pc, err := readPID(child.PID())
				require.NoError(t, err)
				assert.Equal(t, tt.wantName, pc.MappingName)
				assert.Equal(t, map[string]any{"n": int64(1)}, plainMap(pc.Resource.GetAttributes()))
			}
			assert.Equal(t, fds, child.Receive(), "no descriptor is left behind")
			child.Done()
		})
	}
}

// startUnder starts a child that publishes under a system call filter.
func startUnder(t *testing.T, rules ...childproc.Rule) *childproc.Child {
	t.Helper()
	return startPublishing(t, rules, nil)
}

func startPublishing(t *testing.T, rules []childproc.Rule, prepare func(*exec.Cmd)) *childproc.Child {
	t.Helper()
	child := childproc.Start(t, "publish under a filter", prepare)
	encoded, err := json.Marshal(rules)
	require.NoError(t, err)
	child.Send("%s", encoded)
	return child
}

// foreignVariable is the environment variable that makes a child publish a context of another library
// first.
const foreignVariable = "OTELCTX_TEST_FOREIGN"

func publishUnderFilter(parent *childproc.Parent) {
	line, _ := parent.Receive()
	var rules []childproc.Rule
	parent.Must(json.Unmarshal([]byte(line), &rules))
	fds := func() {
		entries, err := os.ReadDir("/proc/self/fd")
		parent.Must(err)
		parent.Send("%d descriptors", len(entries))
	}
	if os.Getenv(foreignVariable) != "" {
		_, err := foreigncontext.Publish()
		parent.Must(err)
	}
	parent.Must(childproc.Deny(rules...))
	fds()
	if _, err := resourcepublisher.New(resource.NewSchemaless(attribute.Int("n", 1))); err != nil {
		parent.Send("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	} else {
		parent.Send("published")
	}
	fds()
	parent.Receive()
}

// TestAnonymousMapping checks that the context is published even if no memfd can be created and the
// mapping gets no name. The system call filter makes prctl return success without naming anything.
func TestAnonymousMapping(t *testing.T) {
	child := startUnder(t, childproc.NoMemfd, childproc.SeemingNaming)
	child.Receive()
	child.Expect("published")
	assert.Empty(t, contextMappings(t, child.PID()))

	entry, err := procfs.NewFS("/proc").Process(child.PID())
	require.NoError(t, err)
	defer entry.Close()
	var found []wire.ProcessContextHeader
	for m, err := range entry.Maps(func(name []byte) bool { return len(name) == 0 }) {
		require.NoError(t, err)
		var b [wire.ProcessContextHeaderSize]byte
		if _, err := remotemem.Of(child.PID()).ReadAt(b[:], int64(m.Start)); err != nil {
			continue
		}
		if h, err := wire.DecodeProcessContextHeader(&b); err == nil {
			assert.Equal(t, "rw-p", m.Perms.String())
			assert.Zero(t, m.Inode)
			assert.NotZero(t, h.PublishedAtNS)
			found = append(found, h)
		}
	}
	assert.Len(t, found, 1)
}

func TestFailedUpdateKeepsTheOldContext(t *testing.T) {
	child := childproc.Start(t, "fail to update", nil)
	child.Expect("published")
	before, err := readPID(child.PID())
	require.NoError(t, err)

	for _, call := range []string{"update", "set"} {
		assert.Contains(t, child.Ask("%s", call), "CLOCK_BOOTTIME: operation not permitted")
		after, err := readPID(child.PID())
		require.NoError(t, err)
		assert.Equal(t, before, after)
	}
	child.Done()
}

func failToUpdate(parent *childproc.Parent) {
	p, err := resourcepublisher.New(resource.NewSchemaless(attribute.Int("n", 1)))
	parent.Must(err)
	parent.Send("published")
	parent.Receive()
	parent.Must(childproc.Deny(childproc.NoBoottime))
	parent.Send("%v", p.Update(resource.NewSchemaless(attribute.Int("n", 2))))
	parent.Receive()
	parent.Send("%v", resourcepublisher.SetAttributes(attribute.Int("n", 2)))
	parent.Receive()
}
