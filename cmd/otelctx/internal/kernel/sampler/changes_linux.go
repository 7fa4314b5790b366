// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/privilege"
)

// Changes reports changes of processes as they happen. It is safe for concurrent use, except that only one
// goroutine may call Next.
type Changes struct {
	mu           sync.Mutex
	closed       bool
	objects      changesObjects
	links        []link.Link
	ring         *ringbuf.Reader
	record       ringbuf.Record
	publications bool
}

// changesObjects are the programs and maps that report changes.
type changesObjects struct {
	AnyExec     *ebpf.Program `ebpf:"any_exec"`
	WatchedExec *ebpf.Program `ebpf:"watched_exec"`
	WatchedExit *ebpf.Program `ebpf:"watched_exit"`
	Publishes   *ebpf.Program `ebpf:"publishes"`
	Changes     *ebpf.Map     `ebpf:"changes"`
	Told        *ebpf.Map     `ebpf:"told"`
}

func (o *changesObjects) close() error {
	return _ProgramClose(o.AnyExec, o.WatchedExec, o.WatchedExit, o.Publishes, o.Changes, o.Told)
}

// Changes starts reporting changes. The result must be closed before the sampler. The error says why the
// kernel cannot report changes.
func (s *Sampler) Changes(config ChangesConfig) (*Changes, error) {
	c := &Changes{}
	if err := privilege.Do(func() error { return c.open(s.objects.Watched, config) }); err != nil {
		return nil, errors.Join(explain(err), c.Close())
	}
	return c, nil
}

// open performs the steps that need capabilities.
func (c *Changes) open(watched *ebpf.Map, config ChangesConfig) error {
	spec, err := loadSpec()
	if err != nil {
		return err
	}
	options := &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{programMapWatched: watched}}
	if err := spec.LoadAndAssign(&c.objects, options); err != nil {
		return fmt.Errorf("load the BPF programs: %w", err)
	}
	if c.ring, err = ringbuf.NewReader(c.objects.Changes); err != nil {
		return fmt.Errorf("ring buffer: %w", err)
	}
	if config.Publications {
		// Attaching to a tracepoint needs its number, which is only in tracefs, and only root may read
		// tracefs.
		if l, err := link.Tracepoint("syscalls", "sys_enter_prctl", c.objects.Publishes, nil); err == nil {
			c.links = append(c.links, l)
			c.publications = true
		}
	}
	exec := c.objects.AnyExec
	if c.publications || config.Watched {
		exec = c.objects.WatchedExec
	}
	for _, program := range []*ebpf.Program{exec, c.objects.WatchedExit} {
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return fmt.Errorf("attach to the kernel's scheduler: %w", err)
		}
		c.links = append(c.links, l)
	}
	return nil
}

// Next waits for a change and stores it in *to. After Close it returns [os.ErrClosed].
func (c *Changes) Next(to *Change) error {
	if err := c.ring.ReadInto(&c.record); err != nil {
		if errors.Is(err, ringbuf.ErrClosed) {
			return os.ErrClosed
		}
		return fmt.Errorf("read changes: %w", err)
	}
	var change programChange
	if _, err := binary.Decode(c.record.RawSample, binary.NativeEndian, &change); err != nil {
		return fmt.Errorf("read changes: %w", err)
	}
	*to = Change{Image: newImage(change.Image), Ended: programChangeKind(change.Kind) == programChangeKindENDED}
	return nil
}

// Again makes the kernel report the next change of a process. The kernel reports one change of each process
// and then no more until Again is called.
func (c *Changes) Again(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	// Deleting fails if no change of the process has been reported, which is not an error.
	_ = privilege.Do(func() error { return c.objects.Told.Delete(uint32(pid)) })
}

// Close releases everything.
func (c *Changes) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	var errs []error
	for _, l := range c.links {
		errs = append(errs, l.Close())
	}
	if c.ring != nil {
		errs = append(errs, c.ring.Close())
	}
	if c.objects.Publishes != nil {
		errs = append(errs, c.objects.close())
	}
	return errors.Join(errs...)
}
