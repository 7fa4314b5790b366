// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// A ring costs the pages that spans are stored in, and its header's.
func TestMemory(t *testing.T) {
	page := os.Getpagesize()
	for name, opts := range map[string][]Option{
		"layout 1":     {WithLayout1()},
		"layout 2":     nil,
		"by goroutine": {WithIndex(ByGoroutine)},
		"attributes":   {WithAttributeSpace(612)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, opts...)
			info := r.Info()
			require.Equal(t, 65536, info.Capacity)
			m := mappingAt(t, os.Getpid(), info.Address)
			assert.Less(t, m.kB["Rss"], 64)
			assert.LessOrEqual(t, m.kB["Rss"]<<10, page, "the header's page")

			used := map[int]bool{0: true}
			var mu sync.Mutex
			var done sync.WaitGroup
			for i := range uint64(200) {
				done.Go(func() {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					span := spanFrom(i)
					place := r.Store(&span)
					mu.Lock()
					defer mu.Unlock()
					used[(info.HeaderSize+int(place-1)*info.SlotSize)/page] = true
				})
			}
			done.Wait()
			m = mappingAt(t, os.Getpid(), info.Address)
			assert.Equal(t, len(used)*page>>10, m.kB["Rss"])
			assert.Zero(t, m.kB["AnonHugePages"])
			assert.Zero(t, m.kB["Swap"])
			if hasHugePages(t) {
				assert.Contains(t, m.flags, "nh", "nor does the kernel ever give it huge pages")
			}

			require.NoError(t, r.Close())
			size := info.HeaderSize + info.Capacity*info.SlotSize
			whole := uint64((size + page - 1) / page * page)
			// Else the kernel lists it as one with memory of other kinds.
			if m = mappingAt(t, os.Getpid(), info.Address); m.start == info.Address && m.end == m.start+whole {
				assert.Zero(t, m.kB["Rss"])
			}
		})
	}
}

// useMuchMemory is a child that says what a ring costs the process as a whole.
func useMuchMemory(p *childproc.Parent) {
	debug.SetGCPercent(-1)
	warm, err := New() // calibrates
	p.Must(err)
	before, err := residentKB()
	p.Must(err)
	rings := make([]*Ring, 64)
	for i := range rings {
		rings[i], err = New()
		p.Must(err)
	}
	after, err := residentKB()
	p.Must(err)
	runtime.KeepAlive(rings)
	runtime.KeepAlive(warm)
	p.Send("%d", (after-before)/len(rings))
	p.Receive()
}

func residentKB() (int, error) {
	f, err := os.Open("/proc/self/smaps_rollup")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if kB, ok := strings.CutPrefix(s.Text(), "Rss:"); ok {
			return strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(kB, "kB")))
		}
	}
	return 0, fmt.Errorf("no Rss in %s", f.Name())
}

// A fresh ring costs next to nothing beside its own pages either.
func TestMemoryOfTheProcess(t *testing.T) {
	newRing(t)
	if os.Getpagesize() > 4096 {
		t.Skip("pages are larger than the limit is meant for")
	}
	c := childproc.Start(t, "use much memory", nil)
	kB, err := strconv.Atoi(c.Receive())
	require.NoError(t, err)
	assert.Less(t, kB, 64)
	t.Logf("%d kB each", kB)
	c.Done()
}
