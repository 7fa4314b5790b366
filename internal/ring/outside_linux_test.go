// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// storeForever is a child process whose goroutines store spans without pause, each in the slot of
// its thread.
func storeForever(p *childproc.Parent) {
	line, _ := p.Receive()
	var c Config
	p.Must(json.Unmarshal([]byte(line), &c))
	runtime.GOMAXPROCS(8)
	r, err := New(c)
	p.Must(err)
	known := goruntime.Calibrate()
	for i := range uint64(12) {
		go func() {
			if i%2 == 0 {
				runtime.LockOSThread()
			}
			for n := uint64(0); ; n++ {
				s, who := spanOf(i<<40|n, r.attributes)
				goruntime.Pin()
				self := known.Self()
				r.Store(uint64(self.TID), &s, &who)
				goruntime.Unpin()
				if n%512 == 0 {
					runtime.Gosched()
				}
			}
		}()
	}
	layout, err := json.Marshal(r.Layout())
	p.Must(err)
	p.Send("%s", layout)
	p.Receive()
}

// TestNothingTornFromOutside checks that a process that follows the protocol reads only complete
// writes of another process, even if threads share slots.
func TestNothingTornFromOutside(t *testing.T) {
	childproc.NeedReading(t)
	newRing(t, Config{Layout: 2, Capacity: 1, Heap: true})
	for _, capacity := range []int{1, 4, 16} {
		for _, space := range []int{0, 100} {
			t.Run(fmt.Sprintf("capacity=%d space=%d", capacity, space), func(t *testing.T) {
				c := childproc.Start(t, "store forever", nil)
				config, err := json.Marshal(Config{Name: "OTELCTX_SLOTS", Layout: 2, Capacity: capacity, AttributeSpace: space})
				require.NoError(t, err)
				var l Layout
				require.NoError(t, json.Unmarshal([]byte(c.Ask("%s", config)), &l))
				memory := remotemem.Of(c.PID())
				slot := make([]byte, l.SlotSize)
				var before, after [8]byte
				refused := 0
				for accepted, n := 0, 0; accepted < rounds(3_000, 50_000) && !t.Failed(); n++ {
					at := l.Address + uint64(l.HeaderSize+n%capacity*l.SlotSize)
					_, err := memory.ReadParts([]remotemem.Part{
						{Address: at + 0x18, Data: before[:]}, {Address: at, Data: slot}, {Address: at + 0x18, Data: after[:]},
					})
					require.NoError(t, err)
					if before[0] != 0 || before != after || binary.LittleEndian.Uint64(slot[0x10:]) == 0 {
						refused++
						continue
					}
					accepted++
					require.NoError(t, checkSlot(slot, l))
				}
				t.Logf("refused %d", refused)
				c.Kill()
			})
		}
	}
}

// faults lists the system calls that fail in the child: Before applies from the start, After only
// once the ring exists.
type faults struct {
	Layout        int
	Before, After []childproc.Rule
}

func workUnderFilters(p *childproc.Parent) {
	say := func(done string, err error) {
		if err != nil {
			done = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		p.Send("%s", done)
		p.Receive()
	}
	line, _ := p.Receive()
	var f faults
	p.Must(json.Unmarshal([]byte(line), &f))
	p.Must(childproc.Deny(f.Before...))
	name := "OTELCTX_SLOTS"
	if f.Layout == 1 {
		name = "DD_OTEL_CTX"
	}
	r, err := New(Config{Name: name, Layout: f.Layout, Capacity: 65536})
	say("made", err)
	if r == nil {
		return
	}
	store := func() {
		s, self := spanOf(1, 0)
		r.store(1, &s, &self)
		if spanID, _, _ := r.Shown(1, self.Goid); spanID != s.SpanID {
			p.Must(errors.New("the span is not in the slot"))
		}
	}
	store()
	if len(f.After) > 0 {
		p.Must(childproc.Deny(f.After...))
	}
	say("closed", r.Close())
	store()
	say("closed", r.Close())
}

// found returns the addresses of a process's rings: named are mappings with the name of a ring,
// searched are anonymous mappings that begin with a ring's magic number, which is how readers of
// layout 1 find them.
func found(t *testing.T, pid int) (named, searched []uint64) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	defer f.Close()
	for m, err := range procfs.Maps(f, func([]byte) bool { return true }) {
		require.NoError(t, err)
		magic := make([]byte, 4)
		switch {
		case strings.Contains(m.Name, "OTELCTX_SLOTS"):
			named = append(named, m.Start)
		case m.Name == "" || strings.HasPrefix(m.Name, "[anon:"):
			if _, err := remotemem.Of(pid).ReadAt(magic, int64(m.Start)); err == nil && binary.LittleEndian.Uint32(magic) == 0x4F54454C {
				searched = append(searched, m.Start)
			}
		}
	}
	return named, searched
}

func TestFaults(t *testing.T) {
	childproc.NeedReading(t)
	newRing(t, Config{Layout: 2, Capacity: 1, Heap: true})
	noMemory1, noMemory2 := childproc.NoMmap(32+65536*32), childproc.NoMmap(64+65536*64)
	for name, tt := range map[string]struct {
		faults

		wantNew, wantClose string
		// found reports whether the ring has a name by which readers find it; searched reports
		// whether they find it by searching anonymous memory.
		found, searched bool
	}{
		"no memfd, no names": {
			faults:  faults{2, []childproc.Rule{childproc.NoMemfd, childproc.NoNaming}, nil},
			wantNew: "mapping cannot be named: memfd_create: operation not permitted; prctl PR_SET_VMA_ANON_NAME: invalid argument",
		},
		"no names":                     {faults: faults{2, []childproc.Rule{childproc.NoNaming}, nil}, found: true},
		"no memfd":                     {faults: faults{2, []childproc.Rule{childproc.NoMemfd, childproc.SeemingNaming}, nil}, searched: true},
		"layout 1, no memfd, no names": {faults: faults{1, []childproc.Rule{childproc.NoMemfd, childproc.NoNaming}, nil}, searched: true},
		"no memory":                    {faults: faults{2, []childproc.Rule{noMemory2}, nil}, wantNew: "mmap of 4198400 bytes: cannot allocate memory"},
		"layout 1, no memory":          {faults: faults{1, []childproc.Rule{noMemory1}, nil}, wantNew: "mmap of 2101248 bytes: cannot allocate memory"},
		"forks inherit":                {faults: faults{2, []childproc.Rule{childproc.NoDontfork}, nil}, wantNew: "madvise MADV_DONTFORK: permission denied"},
		"no memory for closing": {
			faults: faults{2, []childproc.Rule{childproc.NoNaming}, []childproc.Rule{noMemory2}},
			found:  true, wantClose: "close: replace mapping: cannot allocate memory",
		},
		"layout 1, no memory for closing": {
			faults:   faults{1, []childproc.Rule{childproc.NoNaming}, []childproc.Rule{noMemory1}},
			searched: true, wantClose: "close: replace mapping: cannot allocate memory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Getpagesize() != 4096 && strings.Contains(tt.wantNew, "bytes") {
				t.Skip("the sizes assume pages of 4 KiB")
			}
			c := childproc.Start(t, "work under filters", nil)
			line, err := json.Marshal(tt.faults)
			require.NoError(t, err)
			c.Send("%s", line)
			if tt.wantNew != "" {
				c.Expect(tt.wantNew)
				named, searched := found(t, c.PID())
				assert.Empty(t, append(named, searched...), "no mapping may be left")
				c.Done()
				return
			}
			c.Expect("made")
			named, searched := found(t, c.PID())
			assert.Equal(t, tt.found, len(named) == 1)
			assert.Equal(t, tt.searched, len(searched) == 1)

			c.Send("")
			wantClose := tt.wantClose
			if wantClose == "" {
				wantClose = "closed"
			}
			c.Expect(wantClose)
			stillNamed, searched := found(t, c.PID())
			assert.Equal(t, tt.wantClose != "" && tt.found, len(stillNamed) == 1)
			assert.Empty(t, searched)
			for _, address := range named {
				magic := make([]byte, 4)
				_, err := remotemem.Of(c.PID()).ReadAt(magic, int64(address))
				require.NoError(t, err)
				assert.Equal(t, make([]byte, 4), magic, "no ring, whatever may still be mapped")
			}
			c.Send("")
			c.Expect("closed")
			c.Done()
		})
	}
}
