// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/seccomp"
)

// faults are what a child is to go without: before it makes its ring, and before it
// closes it.
type faults struct {
	Layout1       bool
	Before, After []seccomp.Rule
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
	p.Must(seccomp.Deny(f.Before...))
	var opts []Option
	if f.Layout1 {
		opts = append(opts, WithLayout1())
	}
	r, err := New(opts...)
	say("made", err)
	if r == nil {
		return
	}
	span := spanFrom(1)
	place := r.Store(&span)
	if !r.Shows(place, span.SpanID) {
		p.Must(errors.New("it does not show the span"))
	}
	if len(f.After) > 0 {
		p.Must(seccomp.Deny(f.After...))
	}
	say("closed", r.Close())
	r.Store(&span)
	r.Replace(place, span.SpanID, nil)
	say("closed", r.Close())
}

func TestFaults(t *testing.T) {
	newRing(t)
	size1, size2 := 32+65536*32, 64+65536*64
	for name, tt := range map[string]struct {
		faults

		wantNew, wantClose string
		// found says that another process finds the ring: by the name, or by a search.
		found, searched bool
	}{
		"no memfd, no names": {
			faults:  faults{Before: []seccomp.Rule{seccomp.NoMemfd, seccomp.NoNaming}},
			wantNew: "ringbuf: mapping cannot be named: memfd_create: operation not permitted; prctl PR_SET_VMA_ANON_NAME: invalid argument",
		},
		"no names": {
			faults: faults{Before: []seccomp.Rule{seccomp.NoNaming}},
			found:  true,
		},
		"no memfd": {
			faults:   faults{Before: []seccomp.Rule{seccomp.NoMemfd, seccomp.SeemingNaming}},
			searched: true,
		},
		"layout 1, no memfd, no names": {
			faults:   faults{Layout1: true, Before: []seccomp.Rule{seccomp.NoMemfd, seccomp.NoNaming}},
			searched: true,
		},
		"no memory": {
			faults:  faults{Before: []seccomp.Rule{seccomp.NoMmap(size2)}},
			wantNew: "ringbuf: mmap of 4198400 bytes: cannot allocate memory",
		},
		"layout 1, no memory": {
			faults:  faults{Layout1: true, Before: []seccomp.Rule{seccomp.NoMmap(size1)}},
			wantNew: "ringbuf: mmap of 2101248 bytes: cannot allocate memory",
		},
		"forks inherit": {
			faults:  faults{Before: []seccomp.Rule{seccomp.NoDontfork}},
			wantNew: "ringbuf: madvise MADV_DONTFORK: permission denied",
		},
		"no memory to close with": {
			faults:    faults{Before: []seccomp.Rule{seccomp.NoNaming}, After: []seccomp.Rule{seccomp.NoMmap(size2)}},
			found:     true,
			wantClose: "ringbuf: close: replace mapping: cannot allocate memory",
		},
		"layout 1, no memory to close with": {
			faults:    faults{Layout1: true, Before: []seccomp.Rule{seccomp.NoNaming}, After: []seccomp.Rule{seccomp.NoMmap(size1)}},
			searched:  true,
			wantClose: "ringbuf: close: replace mapping: cannot allocate memory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Getpagesize() != 4096 && strings.Contains(tt.wantNew, "bytes") {
				t.Skip("the sizes are those of pages of 4 KiB")
			}
			c := childproc.Start(t, "work under filters", nil)
			files := func() int {
				entries, err := os.ReadDir("/proc/" + strconv.Itoa(c.PID()) + "/fd")
				require.NoError(t, err)
				return len(entries)
			}
			line, err := json.Marshal(tt.faults)
			require.NoError(t, err)
			c.Send("%s", line)
			if tt.wantNew != "" {
				c.Expect(tt.wantNew)
				assert.Empty(t, named(t, c.PID(), "OTELCTX_SLOTS"))
				assert.Empty(t, headersIn(t, c.PID()), "nothing is left behind")
				c.Done()
				return
			}
			c.Expect("made")
			before := files()
			found := named(t, c.PID(), "OTELCTX_SLOTS")
			assert.Equal(t, tt.found, len(found) == 1)
			assert.Equal(t, tt.searched, len(headersIn(t, c.PID())) == 1)

			c.Send("")
			if tt.wantClose != "" {
				c.Expect(tt.wantClose)
			} else {
				c.Expect("closed")
				assert.Empty(t, named(t, c.PID(), "OTELCTX_SLOTS"))
			}
			assert.Empty(t, headersIn(t, c.PID()))
			for _, m := range found {
				assert.Equal(t, make([]byte, 4), seen(t, c.PID(), m.start, 4), "no ring, whatever may still be mapped")
			}
			c.Send("")
			c.Expect("closed")
			assert.Equal(t, before, files())
			c.Done()
		})
	}
}
