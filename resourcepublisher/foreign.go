// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"os"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// foreignContext looks for a process context in this process, which must have none
// of ours, and returns its mapping's name.
//
// It cannot be certain: a library may publish just after the look, and /proc may be
// closed to the process. Then readers find two contexts or we miss one; nothing
// worse comes of it.
func foreignContext() (name string, found bool) {
	self, err := procfs.NewFS("/proc").Process(os.Getpid())
	if err != nil {
		return "", false
	}
	defer func() { _ = self.Close() }()
	// The other library may unmap it under our eyes: read it as a stranger would.
	memory := remotemem.Of(os.Getpid())
	for m, err := range self.Maps(wire.IsProcessContextMapping) {
		if err != nil {
			return "", false
		}
		var b [wire.ProcessContextHeaderSize]byte
		if _, err := memory.ReadAt(b[:], int64(m.Start)); err != nil {
			continue
		}
		if h, err := wire.DecodeProcessContextHeader(&b); err == nil && h.PublishedAtNS != 0 {
			return m.Name, true
		}
	}
	return "", false
}
