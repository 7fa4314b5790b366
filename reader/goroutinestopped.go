// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"github.com/otelctx/otelctx/internal/gostack"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// unwindStopped unwinds the stack of a goroutine that was running when its process was stopped. The
// kernel reports the registers of stopped threads. If the process is not stopped, unwindStopped
// does nothing. It returns false if the goroutine must be read again.
func (c *goroutineCall) unwindStopped(out *Goroutine, r *goroutineReading) bool {
	low, high, ok := r.g.Bounds()
	if out.OwnTID == 0 || c.options.Code == nil || !ok {
		return true
	}
	kernel, ok := c.memory.(interface {
		Stopped(tid int) (procfs.Registers, error)
	})
	if !ok {
		return true
	}
	tid, ok := c.tid(out.OwnTID)
	if !ok {
		return true
	}
	before, err := kernel.Stopped(tid)
	if err != nil || before.SP%8 != 0 || before.SP < low || before.SP >= high {
		return true
	}
	s := gostack.Stack{Low: max(low, before.SP-8), Data: make([]byte, min(high-max(low, before.SP-8), maxStack))}
	parts := []remotemem.Part{{Address: s.Low, Data: s.Data}, {Address: r.g.Address, Data: r.after}}
	if _, err := c.memory.ReadParts(parts); err != nil || !c.layout.SameAs(r.g.Data, r.after) {
		return false
	}
	if after, err := kernel.Stopped(tid); err != nil || after != before {
		return true
	}
	pcs, result := c.layout.UnwindFrom(s, before.PC, before.SP, c.options.Code, c.pcs)
	if len(pcs) > len(c.pcs) {
		c.setStack(out, pcs, result)
	}
	return true
}

// tid converts a thread id of the process's own PID namespace to one of the caller's.
func (c *goroutineCall) tid(own int) (int, bool) {
	if c.threads == nil {
		c.threads = map[int]int{}
		threads, err := c.process.listThreads(c.ctx)
		if err != nil {
			return 0, false
		}
		for _, t := range threads {
			c.threads[t.OwnTID] = t.TID
		}
	}
	tid, ok := c.threads[own]
	return tid, ok
}
