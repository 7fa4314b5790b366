// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/resources"
)

// faults lists the system calls that fail in a child: Before applies from the start, After only
// once the ring exists.
type faults struct {
	Layout        int
	Before, After []childproc.Rule
}

// workUnderFilters is a child process that creates and closes a ring while system calls fail. It sends the errors of
// New and Close, each followed by how readers can find the ring then: by its name or by its magic number.
func workUnderFilters(p *childproc.Parent) {
	line, _ := p.Receive()
	var f faults
	p.Must(json.Unmarshal([]byte(line), &f))
	p.Must(childproc.Deny(f.Before...))
	say := func(err error) {
		var findable []string
		mappings, mapsErr := resources.Mappings("")
		p.Must(mapsErr)
		for _, m := range mappings {
			if strings.Contains(m.Name, "OTELCTX_SLOTS") {
				findable = append(findable, "name")
			}
			magic := make([]byte, 4)
			if _, err := remotemem.Of(os.Getpid()).ReadAt(magic, int64(m.Start)); err == nil && binary.LittleEndian.Uint32(magic) == 0x4F54454C {
				findable = append(findable, "magic")
			}
		}
		p.Send("%v %v", strings.ReplaceAll(fmt.Sprint(err), "\n", "; "), findable)
	}
	r, err := New(Config{Layout: f.Layout, Capacity: 65536})
	say(err)
	if r == nil {
		return
	}
	store := func() {
		s, self := spanOf(1, 0)
		r.store(1, &s, &self)
		if got, _, _, _ := r.Load(1); got.SpanID != s.SpanID {
			p.Must(errors.New("the span is not in the slot"))
		}
	}
	store()
	p.Must(childproc.Deny(f.After...))
	say(r.Close())
	store()
	p.Must(r.Close())
}

func TestFaults(t *testing.T) {
	newRing(t, Config{Layout: 2, Capacity: 1, Heap: true})
	noMemory1, noMemory2 := childproc.NoMmap(32+65536*32), childproc.NoMmap(64+65536*64)
	const closed = "<nil> []"
	for name, tt := range map[string]struct {
		faults faults
		// want holds what New and Close return, and how readers can find the ring afterwards.
		want []string
	}{
		"no memfd, no names": {
			faults{2, []childproc.Rule{childproc.NoMemfd, childproc.NoNaming}, nil},
			[]string{"mapping cannot be named: memfd_create: operation not permitted; prctl PR_SET_VMA_ANON_NAME: invalid argument []"},
		},
		"no names":                     {faults{2, []childproc.Rule{childproc.NoNaming}, nil}, []string{"<nil> [name magic]", closed}},
		"no memfd":                     {faults{2, []childproc.Rule{childproc.NoMemfd, childproc.SeemingNaming}, nil}, []string{"<nil> [magic]", closed}},
		"layout 1, no memfd, no names": {faults{1, []childproc.Rule{childproc.NoMemfd, childproc.NoNaming}, nil}, []string{"<nil> [magic]", closed}},
		"no memory":                    {faults{2, []childproc.Rule{noMemory2}, nil}, []string{"mmap of 4198400 bytes: cannot allocate memory []"}},
		"layout 1, no memory":          {faults{1, []childproc.Rule{noMemory1}, nil}, []string{"mmap of 2101248 bytes: cannot allocate memory []"}},
		"forks inherit":                {faults{2, []childproc.Rule{childproc.NoDontfork}, nil}, []string{"madvise MADV_DONTFORK: permission denied []"}},
		"no memory for closing": {
			faults{2, []childproc.Rule{childproc.NoNaming}, []childproc.Rule{noMemory2}},
			[]string{"<nil> [name magic]", "close: replace mapping: cannot allocate memory [name]"},
		},
		"layout 1, no memory for closing": {
			faults{1, []childproc.Rule{childproc.NoNaming}, []childproc.Rule{noMemory1}},
			[]string{"<nil> [magic]", "close: replace mapping: cannot allocate memory []"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Getpagesize() != 4096 && strings.Contains(tt.want[0], "bytes") {
				t.Skip("the sizes assume pages of 4 KiB")
			}
			c := childproc.Start(t, "work under filters", nil)
			line, err := json.Marshal(tt.faults)
			require.NoError(t, err)
			c.Send("%s", line)
			for _, want := range tt.want {
				c.Expect(want)
			}
			c.Done()
		})
	}
}
