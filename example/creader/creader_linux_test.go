// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package creader

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/foreigncontext"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		"service":    func(p *childproc.Parent) { service(p, resourcepublisher.WithResource(theResource())) },
		"foreign":    foreign,
		"spans only": func(p *childproc.Parent) { service(p) },
		"publisher":  publisher,
		"stranger":   func(p *childproc.Parent) { p.Send("ready"); p.Receive() },
	})
}

// serviceName contains a control sequence that a reader must not print to a terminal.
const serviceName = "check\x1b[31mout"

// inSpans is the number of threads with an active span in the service. live is the number of its live
// spans, which includes the span of the parked goroutine.
const inSpans, live = 3, inSpans + 1

func theResource() *resource.Resource {
	return resource.NewSchemaless(
		attribute.Float64("a.double", 1.5), attribute.StringSlice("a.list", []string{"x", "y"}),
		attribute.String("service.name", serviceName), attribute.Int("z.number", -1),
	)
}

// foreign is a service whose process context belongs to another library.
func foreign(p *childproc.Parent) {
	_, err := foreigncontext.Publish()
	p.Must(err)
	service(p)
}

// service is a child process with several goroutines, and sends the id of the parked one's span:
//
//   - inSpans goroutines block their threads inside spans. One of these goroutines had an inner span,
//     which was ended on another goroutine.
//   - One goroutine blocks its thread after its span has ended.
//   - One goroutine is parked in a span, and is on no thread.
func service(p *childproc.Parent, opts ...sdktrace.TracerProviderOption) {
	tp := sdktrace.NewTracerProvider(append(opts, spanctx.WithPublishing())...)
	tracer := tp.Tracer("creader")
	// Reading the pipe blocks the thread, not only the goroutine. The pipe is not wrapped in an
	// os.File, which the garbage collector would close.
	var pipe [2]int
	p.Must(syscall.Pipe(pipe[:]))
	wait := func() { _, _ = syscall.Read(pipe[0], make([]byte, 1)) }
	inner := make(chan trace.Span, 1)
	var started sync.WaitGroup
	started.Add(inSpans + 1)
	for i := range inSpans {
		go func() {
			runtime.LockOSThread()
			ctx, _ := tracer.Start(context.Background(), "blocked")
			if i == 0 {
				_, span := tracer.Start(ctx, "ended elsewhere")
				inner <- span
			}
			started.Done()
			wait()
		}()
	}
	go func() {
		runtime.LockOSThread()
		_, span := tracer.Start(context.Background(), "ended")
		span.End()
		started.Done()
		wait()
	}()
	parked := make(chan string)
	go func() {
		_, span := tracer.Start(context.Background(), "parked")
		parked <- span.SpanContext().SpanID().String()
		select {}
	}()
	id := <-parked
	// End the inner span last, because a span that starts later may reuse its cell.
	started.Wait()
	(<-inner).End()
	p.Send("%s", id)
	p.Receive()
}

// publisher is a child process that publishes each payload that it receives, in hexadecimal digits, as
// its process context. The command "too large" keeps the payload, but publishes a size that is too
// large.
func publisher(p *childproc.Parent) {
	region, err := vma.New(wire.ProcessContextName, 2*wire.MaxProcessContextPayload)
	p.Must(err)
	h := wire.ProcessContextHeaderIn(region.Bytes())
	h.Version, h.PublishedAtNS = wire.ProcessContextVersion, 1
	h.Payload = region.Address() + wire.ProcessContextHeaderSize
	copy(h.Signature[:], wire.ProcessContextSignature)
	p.Must(region.Announce())
	for p.Send("ready"); ; p.Send("ready") {
		line, ok := p.Receive()
		if !ok {
			return
		}
		if line == "too large" {
			h.PayloadSize = wire.MaxProcessContextPayload + 1
			continue
		}
		payload, err := hex.DecodeString(line)
		p.Must(err)
		h.PayloadSize = uint32(copy(region.Bytes()[wire.ProcessContextHeaderSize:], payload))
	}
}

// compile returns the path of the compiled reader.
func compile(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler (cc)")
	}
	// Read the source so that go test runs the test again after it has changed.
	source, err := os.ReadFile("creader.c")
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "creader")
	build := func(more ...string) ([]byte, error) {
		args := []string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-o", program, "-x", "c", "-"}
		cmd := exec.Command(cc, append(more, args...)...)
		cmd.Stdin = bytes.NewReader(source)
		return cmd.CombinedOutput()
	}
	if _, err := build("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"); err == nil {
		return program
	}
	t.Log("this C compiler may have no sanitizers")
	out, err := build()
	require.NoError(t, err, string(out))
	return program
}

// read runs the reader on a process and returns its output lines and its exit code.
func read(t *testing.T, program string, pid int) (lines []string, code int) {
	t.Helper()
	stdout, stderr, code := programs.Run(t, exec.Command(program, strconv.Itoa(pid)))
	require.NotContains(t, stderr, "ERROR: AddressSanitizer")
	require.NotContains(t, stderr, "runtime error")
	return strings.Split(strings.TrimSuffix(stdout, "\n"), "\n"), code
}

// threads returns the active spans of threads from the Go reader, in the format of the C reader.
func threads(t *testing.T, p *reader.Process) (lines []string) {
	t.Helper()
	all, err := p.Threads(t.Context())
	require.NoError(t, err)
	for _, thread := range all {
		if s := thread.Span; s != nil {
			lines = append(lines, fmt.Sprintf("thread %d trace %x span %x goroutine %d", thread.TID, s.TraceID, s.SpanID, thread.Goroutine))
		}
	}
	return lines
}

// liveSpans returns the live spans from the Go reader, in the format of the C reader.
func liveSpans(t *testing.T, p *reader.Process) (lines []string) {
	t.Helper()
	all, err := p.Spans(t.Context())
	require.NoError(t, err)
	for _, s := range all {
		lines = append(lines, fmt.Sprintf("live trace %x span %x goroutine %d", s.TraceID, s.SpanID, s.Starter.ID))
	}
	return lines
}

// blocked returns the number of threads that block reading anything but standard input.
func blocked(t *testing.T, pid int) (n int) {
	t.Helper()
	calls, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	require.NoError(t, err)
	for _, path := range calls {
		// The file has the call's number and its first argument; it is empty if the thread has
		// exited.
		call, _ := os.ReadFile(path)
		if rest, ok := strings.CutPrefix(string(call), fmt.Sprintf("%d ", syscall.SYS_READ)); ok && !strings.HasPrefix(rest, "0x0 ") {
			n++
		}
	}
	return n
}

func open(t *testing.T, c *childproc.Child) *reader.Process {
	t.Helper()
	p, err := reader.Open(c.PID())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

// TestReader runs all tests of the C program, which it compiles once.
func TestReader(t *testing.T) {
	program := compile(t)
	t.Run("agrees with the Go reader", func(t *testing.T) { agreesWithTheGoReader(t, program) })
	t.Run("without a context", func(t *testing.T) { withoutContext(t, program) })
	t.Run("hostile payloads", func(t *testing.T) { hostilePayloads(t, program) })
}

func agreesWithTheGoReader(t *testing.T, program string) {
	for name, test := range map[string]struct {
		role, service string
		flags         uintptr
	}{
		"":                              {"service", "check?[31mout", 0},
		"in a PID namespace of its own": {"service", "check?[31mout", syscall.CLONE_NEWPID},
		"another library's context":     {"foreign", foreigncontext.Service, 0},
		"no context":                    {"spans only", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			flags := test.flags
			if flags != 0 && os.Geteuid() != 0 {
				t.Skip("a PID namespace needs CAP_SYS_ADMIN")
			}
			c := childproc.Start(t, test.role, func(cmd *exec.Cmd) {
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
			})
			parked := c.Receive()
			p := open(t, c)
			// Wait until the service's goroutines have reached their final state.
			require.Eventually(t, func() bool {
				return blocked(t, c.PID()) == inSpans+1 && !strings.Contains(strings.Join(threads(t, p), "\n"), parked)
			}, testenv.Patience, 10*time.Millisecond)
			require.Len(t, threads(t, p), inSpans)

			lines, code := read(t, program, c.PID())
			require.Zero(t, code)
			assert.Equal(t, "service "+test.service, lines[0])
			require.Len(t, liveSpans(t, p), live)
			want, got := append(threads(t, p), liveSpans(t, p)...), lines[1:]
			slices.Sort(want)
			slices.Sort(got)
			assert.Equal(t, want, got)
			assert.Equal(t, 1, strings.Count(strings.Join(got, "\n"), parked), "the span is live, but its goroutine is on no thread")
		})
	}
}

func withoutContext(t *testing.T, program string) {
	c := childproc.Start(t, "stranger", nil)
	c.Expect("ready")
	_, code := read(t, program, c.PID())
	assert.Equal(t, 1, code)
}

// hostilePayloads checks that the reader does not crash on malformed payloads, and rejects one that
// is too large.
func hostilePayloads(t *testing.T, program string) {
	c := childproc.Start(t, "service", nil)
	c.Receive()
	pc, err := open(t, c).ProcessContext(t.Context())
	require.NoError(t, err)
	payload := pc.Payload

	hostile := childproc.Start(t, "publisher", nil)
	hostile.Expect("ready")
	publish := func(payload []byte) (lines []string, code int) {
		// Place the payload at the end of the reader's buffer, so that reading one byte too far is
		// out of bounds.
		padding := wire.MaxProcessContextPayload - len(payload) - 5
		p := protowire.AppendTag(nil, 1000, protowire.BytesType)
		p = append(protowire.AppendVarint(p, uint64(padding)), make([]byte, padding)...)
		require.Equal(t, "ready", hostile.Ask("%x", append(p, payload...)))
		return read(t, program, hostile.PID())
	}
	lines, code := publish(payload)
	require.Zero(t, code)
	require.Equal(t, "service check?[31mout", lines[0], "unchanged")

	// Publish a varint that is not terminated, and one that is too long.
	publish(append(slices.Clone(payload), 0xff))
	publish(append(bytes.Repeat([]byte{0xff}, 11), payload...))
	random := rand.New(rand.NewPCG(1, 2))
	for i := range testenv.Rounds(60, 1000) {
		p := slices.Clone(payload)
		if i%4 == 0 {
			p = p[:1+random.IntN(len(p)-1)]
		}
		for range random.IntN(4) {
			p[random.IntN(len(p))] = []byte{0, 0x7f, 0xff, byte(random.Uint32())}[random.IntN(4)]
		}
		publish(p)
	}
	require.Equal(t, "ready", hostile.Ask("too large"))
	_, code = read(t, program, hostile.PID())
	assert.Equal(t, 1, code)
}
