// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/universalprofiling"
)

const roleUniversal = "universal profiling"

var _ = addRole(roleUniversal, serveUniversal)

// serveUniversal is a service by HTTP, with its clients, that shows its spans by Universal
// Profiling. It is told how many clients there are, whether handlers block, and whether the
// service refreshes what threads show. Half of its requests are not sampled.
func serveUniversal(parent *childproc.Parent) {
	var workers int
	var blocks, refreshes bool
	line, _ := parent.Receive()
	_, err := fmt.Sscan(line, &workers, &blocks, &refreshes)
	parent.Must(err)
	runtime.GOMAXPROCS(4)
	i, err := universalprofiling.New(universalprofiling.WithMode(universalprofiling.Enabled))
	if errors.Is(err, errors.ErrUnsupported) {
		parent.Send("unsupported: %v", err)
		return
	}
	parent.Must(err)
	sampler, refresh := sdktrace.TraceIDRatioBased(0.5), func(context.Context) {}
	if refreshes {
		sampler, refresh = universalprofiling.NewSampler(sampler), universalprofiling.Refresh
	}
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(i), sdktrace.WithSampler(sampler))
	burn := func(ctx context.Context) {
		sc := trace.SpanContextFromContext(ctx)
		if !sc.IsSampled() {
			sc = trace.SpanContext{}
		}
		noted{}.burn(sc)
	}
	server := httptest.NewServer(otelhttp.NewHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		burn(r.Context())
		if blocks {
			block()
			refresh(r.Context())
		}
		burn(r.Context())
	}), "request", otelhttp.WithTracerProvider(tp)))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	for range workers {
		go func() {
			for {
				refresh(context.Background())
				burn(context.Background())
				if r, err := client.Get(server.URL); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					_ = r.Body.Close()
				}
			}
		}()
	}
	parent.Send("%d", cellsAddress())
	parent.Receive()
	parent.Must(i.Shutdown(context.Background()))
}

var libraryMapping = regexp.MustCompile(`(?m)^(([0-9a-f]+)-[0-9a-f]+) r-xp \S+ \S+ \S+ +/\S*elastic-jvmti-linux-\S+`)

// wordOffset returns how far from its thread pointer a thread has the pointer to its record, as
// the library of a process says. internal/interop/profiler shows that the OpenTelemetry eBPF profiler's
// own code finds the same.
func wordOffset(t *testing.T, pid int) uint64 {
	t.Helper()
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	match := libraryMapping.FindStringSubmatch(string(all))
	require.NotNil(t, match)
	start, err := strconv.ParseUint(match[2], 16, 64)
	require.NoError(t, err)
	f, err := elf.Open(fmt.Sprintf("/proc/%d/map_files/%s", pid, match[1]))
	if errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			start -= p.Vaddr
		}
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_RELA {
			continue
		}
		b, err := s.Data()
		require.NoError(t, err)
		for ; len(b) >= 24; b = b[24:] {
			if elf.R_X86_64(f.ByteOrder.Uint64(b[8:])&0xffffffff) == elf.R_X86_64_TLSDESC {
				word := make([]byte, 8)
				_, err := remotemem.Of(pid).ReadAt(word, int64(start+f.ByteOrder.Uint64(b)+8))
				require.NoError(t, err)
				return binary.NativeEndian.Uint64(word)
			}
		}
	}
	t.Fatal("the library has no thread-local variable")
	return 0
}

// threadPointer returns that of a thread that runs.
func threadPointer(tid int) (uint64, error) {
	// The kernel has a tracer be a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := syscall.PtraceAttach(tid); err != nil {
		return 0, err
	}
	var regs syscall.PtraceRegs
	_, err := syscall.Wait4(tid, nil, syscall.WALL, nil)
	if err == nil {
		err = syscall.PtraceGetRegs(tid, &regs)
	}
	return regs.Fs_base, errors.Join(err, syscall.PtraceDetach(tid))
}

// TestUniversalProfiling prints how often the threads' records have the transaction that the
// thread is in, and fails if nothing is ever right.
func TestUniversalProfiling(t *testing.T) {
	var text table
	text.header()
	for _, workers := range []int{1, 8, 64} {
		for _, blocks := range []bool{false, true} {
			for _, refreshes := range []bool{false, true} {
				scenario := fmt.Sprintf("HTTP, concurrency %d, blocking=%t", workers, blocks)
				carrier := map[bool]string{false: "as is", true: "Refresh and NewSampler"}[refreshes]
				t.Run(scenario+", "+carrier, func(t *testing.T) {
					s := measureUniversal(t, workers, blocks, refreshes)
					text.add(scenario, carrier, s)
				})
			}
		}
	}
	t.Log(text.String())
}

func measureUniversal(t *testing.T, workers int, blocks, refreshes bool) (s score) {
	t.Helper()
	child := childproc.Start(t, roleUniversal, nil)
	address, err := strconv.ParseUint(child.Ask("%d %t %t", workers, blocks, refreshes), 10, 64)
	require.NoError(t, err)
	offset := wordOffset(t, child.PID())
	memory := remotemem.Of(child.PID())
	read := func(at uint64, b []byte) {
		_, err := memory.ReadAt(b, int64(at))
		require.NoError(t, err)
	}
	bases := map[uint64]uint64{}
	for deadline := time.Now().Add(10 * time.Minute); s.samples() < *samples || s.right == 0; {
		require.True(t, time.Now().Before(deadline), "%d samples, %d of them right", s.samples(), s.right)
		time.Sleep(time.Duration(200+rand.IntN(1000)) * time.Microsecond)
		child.Stop()
		unknown := map[uint64]bool{}
		b := make([]byte, len(cells)*cellSize)
		read(address, b)
		for ; len(b) > 0; b = b[cellSize:] {
			tid, doing, span := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:]), binary.NativeEndian.Uint64(b[16:])
			if tid == 0 || doing == 0 {
				continue
			}
			base, known := bases[tid]
			if !known {
				unknown[tid] = true
				continue
			}
			given := uint64(0)
			word, record := make([]byte, 8), make([]byte, 37)
			read(base+offset, word)
			if at := binary.NativeEndian.Uint64(word); at != 0 {
				const valid, present, transaction = 2, 3, 29
				if read(at, record); record[valid] != 0 && record[present] != 0 {
					given = binary.BigEndian.Uint64(record[transaction:])
				}
			}
			s.add(doing == inside, given != 0, doing == inside && given == span)
		}
		child.Continue()
		for tid := range unknown {
			if base, err := threadPointer(int(tid)); errors.Is(err, syscall.EPERM) {
				t.Skip(err)
			} else if err == nil {
				bases[tid] = base
			}
		}
	}
	child.Done()
	return s
}
