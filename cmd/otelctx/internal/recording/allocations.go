// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/allocations"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

var (
	// ErrNoAllocations is wrapped by errors about processes whose allocations cannot be sampled.
	ErrNoAllocations = errors.New("its allocations cannot be sampled")
	// errRateZero and errNoRate are the reasons that the process can change.
	errRateZero = errors.New(`runtime.MemProfileRate is 0, so the Go runtime samples none: add import _ "github.com/otelctx/otelctx/spanctx/allocs"` +
		", or, if otelctx was added without code, start it with OTELCTX_ALLOCATION_SAMPLING=true")
	errNoRate = errors.New("it does not publish where its runtime.MemProfileRate is, as services with spanctx of this version do")
	// errNoRateYet replaces errNoRate for programs that may have published it just before they ended.
	errNoRateYet = fmt.Errorf("%w, or it ended before otelctx could read the rate", errNoRate)
)

// Allocated is what the processes of a recording have allocated.
type Allocated struct {
	// Total is the amount of all allocations, and Attributed that of allocations in spans.
	Total, Attributed allocations.Amount
	// Unweighed counts samples that are left out because nothing is known about the rate of their process.
	Unweighed uint64
	// Reason is why the allocations of a selected process, or of a child of the command, were not sampled; nil for
	// none. If there are several, it is the last.
	Reason error
	// Rows add up the allocations. Attributes is nil without Config.Attributes.
	tally.Rows[allocations.Amount]
}

// Live is what the programs of a recording have in use: the objects that were allocated during the whole recording, before
// the last completed collection of their program began, and were not freed before the end of the period or of the program.
type Live struct {
	// Total is the amount of all objects, and Attributed that of objects allocated in spans.
	Total, Attributed allocations.Amount
	// Collections is the number of collections that the programs have completed since the start of the recording. Before the
	// first, nothing is known to be in use.
	Collections uint64
	// LostFrees counts sampled objects that were freed without notice during the period. They count as being in use if they
	// were allocated during the recording.
	LostFrees uint64
	// LeftOut counts objects that were not followed because there was no room.
	LeftOut uint64
	// Rows add up the objects. Attributes is nil without Config.Attributes.
	tally.Rows[allocations.Amount]
}

// findSites finds the places for the probes in a program and reads the rate, if the program publishes already.
func (s *scanner) findSites(t *target) error {
	sites, err := allocations.Find(t.image.PID, s.config.Sampler.Live)
	if err == nil {
		t.sites = sites
		err = t.readRate(t.published.Load().layout)
	}
	if err == nil || errors.Is(err, reader.ErrNotPermitted) {
		return err
	}
	err = s.noteUnsampled(t, err)
	if s.config.Children {
		return nil // A command and its children need not all be Go programs, and those that are have not published yet.
	}
	return err
}

// probe makes the kernel sample the allocations of a program. It does nothing if no places for probes are known, or
// unless allocations are sampled.
func (s *scanner) probe(t *target) error {
	if t.sites == nil {
		return nil
	}
	var err error
	// Allocations come last, so that no freed object is missed.
	for _, p := range []struct {
		event    sampler.Event
		function allocations.Function
	}{{sampler.Swept, allocations.NextEpoch}, {sampler.Freed, allocations.FreeSpecial}, {sampler.Allocation, allocations.Malloc}} {
		if offset, ok := t.sites.Offset[p.function]; ok && err == nil {
			err = s.sampler.Probe(t.image, p.event, t.sites.File, offset)
		}
	}
	_ = t.sites.Close() // The kernel holds the file.
	t.sites = nil
	return err
}

// followRate reads the rate of a recorded program again. If it is still unknown or 0, the program has samples that count
// for nothing, or none at all. followRate notes why. The process may block it.
func (s *scanner) followRate(t *target, layout *reader.ThreadLayout) {
	if err := t.readRate(layout); err != nil && t.rate.Load() == 0 {
		_ = s.noteUnsampled(t, err)
	}
}

// noteUnsampled notes why the allocations of a program are not sampled, and returns the error for the user.
func (s *scanner) noteUnsampled(t *target, err error) error {
	if s.config.Children && errors.Is(err, errNoRate) {
		err = errNoRateYet
	}
	err = fmt.Errorf("pid %d: %w: %w", t.image.PID, ErrNoAllocations, err)
	s.unsampled.Store(&err)
	return err
}

// readRate reads the rate at which the runtime samples allocations. The rate that was read last counts for all samples:
// the runtime's documentation demands that it changes at most once, as early as possible.
func (t *target) readRate(layout *reader.ThreadLayout) error {
	address, ok := rateAddress(layout)
	if !ok {
		return errNoRate
	}
	var b [8]byte
	if _, err := remotemem.Of(t.image.PID).ReadAt(b[:], int64(address)); err != nil {
		return fmt.Errorf("runtime.MemProfileRate: %w", err)
	}
	rate := int64(binary.NativeEndian.Uint64(b[:]))
	if rate <= 0 {
		return errRateZero
	}
	t.rate.Store(uint64(rate))
	return nil
}

// rateAddress returns the address at which a process publishes that its runtime.MemProfileRate is.
func rateAddress(layout *reader.ThreadLayout) (uint64, bool) {
	if layout == nil || layout.Advertisement == nil {
		return 0, false
	}
	for _, kv := range layout.Advertisement.Attributes {
		if kv.GetKey() == wire.KeyGo+wire.GoKeyMemProfileRate {
			address := kv.GetValue().GetIntValue()
			return uint64(address), address > 0 && address%8 == 0
		}
	}
	return 0, false
}

// withoutAllocator returns a stack without its innermost functions of the Go runtime, as heap profiles of runtime/pprof
// have it. If all functions belong to the runtime, only the allocator's are removed.
func withoutAllocator(stack []*symbols.Location) []*symbols.Location {
	i := slices.IndexFunc(stack, func(l *symbols.Location) bool { return !isFunction(l, "runtime.", "internal/runtime/") })
	if i < 0 {
		i = slices.IndexFunc(stack, func(l *symbols.Location) bool {
			return !isFunction(l, "runtime.mProf_Malloc", "runtime.profilealloc", "runtime.mallocgc")
		})
	}
	return stack[max(i, 0):]
}

// isFunction reports whether the name of a location's function, into which others may be inlined, begins with one of the prefixes.
func isFunction(l *symbols.Location, prefixes ...string) bool {
	return len(l.Lines) > 0 && slices.ContainsFunc(prefixes, func(prefix string) bool {
		return strings.HasPrefix(l.Lines[len(l.Lines)-1].Function, prefix)
	})
}
