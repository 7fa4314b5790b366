// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/resource"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// startShell starts a shell that executes sleep when it is sent a line.
func startShell(t *testing.T) *childproc.Child {
	t.Helper()
	c := childproc.Run(t, exec.Command("sh", "-c", "echo ready; read line; exec sleep 1000"))
	c.Expect("ready")
	return c
}

// openChanges starts reporting the changes that config selects, until the end of the test.
func openChanges(t *testing.T, s *Sampler, config ChangesConfig) *Changes {
	t.Helper()
	changes, err := s.Changes(config)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, changes.Close()) })
	return changes
}

// nextOf returns the next change of one of these processes.
func nextOf(t *testing.T, changes *Changes, pids ...int) Change {
	t.Helper()
	timeout := time.AfterFunc(testenv.Patience, func() { _ = changes.Close() })
	defer timeout.Stop()
	for {
		var c Change
		require.NoError(t, changes.Next(&c))
		if slices.Contains(pids, c.Image.PID) {
			return c
		}
		changes.Again(c.Image.PID)
	}
}

// TestChangesOfWatched checks that the execs and the end of a watched process are reported, but not those of
// another process.
func TestChangesOfWatched(t *testing.T) {
	s := open(t, Config{Frequency: 1})
	stranger, watched := startShell(t), startShell(t)
	image, err := s.Image(watched.PID())
	require.NoError(t, err)
	require.NoError(t, s.Watch(image, nil))
	changes := openChanges(t, s, ChangesConfig{Watched: true})
	assert.False(t, changes.publications)

	stranger.Send("go")
	watched.Send("go")
	c := nextOf(t, changes, stranger.PID(), watched.PID())
	now, err := s.Image(watched.PID())
	require.NoError(t, err)
	assert.NotEqual(t, image, now)
	assert.Equal(t, Change{Image: now}, c)

	stranger.Kill()
	watched.Kill()
	c = nextOf(t, changes, stranger.PID(), watched.PID())
	assert.Equal(t, Change{Image: now, Ended: true}, c)
}

// TestChangesOfAll checks that the execs of all processes are reported, and that each process is reported only
// once until Again is called.
func TestChangesOfAll(t *testing.T) {
	s := open(t, Config{Frequency: 1})
	changes := openChanges(t, s, ChangesConfig{})
	again := childproc.Run(t, exec.Command("sh", "-c", `echo ready; read line; exec sh -c 'exec sh -c "echo done; read line; exec sleep 1000"'`))
	again.Expect("ready")
	require.Equal(t, again.PID(), nextOf(t, changes, again.PID()).Image.PID, "the first sh")
	assert.Equal(t, "done", again.Ask("go"))
	other := startShell(t)
	assert.Equal(t, other.PID(), nextOf(t, changes, again.PID(), other.PID()).Image.PID, "not rearmed")
	changes.Again(again.PID())
	again.Send("go")
	assert.Equal(t, again.PID(), nextOf(t, changes, again.PID()).Image.PID)

	require.NoError(t, changes.Close())
	assert.ErrorIs(t, changes.Next(&Change{}), os.ErrClosed)
	changes.Again(1)
}

const rolePublications = "publications"

// publicationsRole receives the reports of its own publications. It mounts a private tracefs for that.
func publicationsRole(parent *childproc.Parent) {
	const tracefs = "/sys/kernel/tracing"
	if err := unix.Mount("none", tracefs, "tracefs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		parent.Send("no tracefs: %v", err)
		return
	}
	s, err := Open(Config{Frequency: 1})
	parent.Must(err)
	changes, err := s.Changes(ChangesConfig{Publications: true})
	parent.Must(err)
	if !changes.publications {
		parent.Send("no tracepoints of system calls")
		return
	}
	parent.Send("ready")
	parent.Receive()
	r, err := vma.New("OTEL_DIFFERENT", 1)
	parent.Must(err)
	_ = r.Announce() // the result does not matter
	var one uint8
	if changes.objects.Told.Lookup(uint32(os.Getpid()), &one) == nil {
		parent.Send("told of a name that is no publisher's")
		return
	}
	publisher, err := resourcepublisher.New(resource.Empty())
	parent.Must(err)
	var c Change
	for range 2 { // publications
		for c.Image.PID != os.Getpid() {
			parent.Must(changes.Next(&c))
		}
		changes.Again(os.Getpid())
		parent.Send("published")
		parent.Receive()
		parent.Must(publisher.Update(resource.Empty()))
		c = Change{}
	}
}

// TestChangesOfPublishers checks that publishing a process context is reported, both the first time and
// after an update.
func TestChangesOfPublishers(t *testing.T) {
	needNamespaces(t)
	needSampling(t)
	c := childproc.Start(t, rolePublications, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	})
	if answer := c.Receive(); answer != "ready" {
		t.Skip(answer)
	}
	assert.Equal(t, "published", c.Ask("publish"))
	assert.Equal(t, "published", c.Ask("publish anew"))
	c.Done()
}
