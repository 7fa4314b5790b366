// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/DataDog/dd-trace-go/v2/ddtrace/tracer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){"service": service})
}

// silence is a dd-trace-go logger that discards everything, because the agent is missing.
type silence struct{}

func (silence) Log(string) {}

// service is the child process. It executes commands, one word per line. It answers "ok" followed by
// the errors that otel.Handle received, or "TID SPANID" to the command span.
func service(parent *childproc.Parent) {
	var reported []string
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { reported = append(reported, err.Error()) }))
	var opts []sdktrace.TracerProviderOption
	for {
		word, ok := parent.Receive()
		if !ok {
			return
		}
		switch word {
		case "datadog":
			parent.Must(tracer.Start(tracer.WithService("theirs"), tracer.WithLogStartup(false), tracer.WithLogger(silence{}),
				tracer.WithAgentTimeout(1)))
		case "spans":
			opts = append(opts, spanctx.WithPublishing())
		case "resource":
			opts = append(opts, resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "ours"))))
		case "span":
			provider := sdktrace.NewTracerProvider(opts...)
			said := make(chan string)
			go func() {
				runtime.LockOSThread()
				_, span := provider.Tracer("").Start(context.Background(), "span")
				said <- fmt.Sprint(syscall.Gettid(), " ", span.SpanContext().SpanID())
				pipe := make([]int, 2)
				parent.Must(syscall.Pipe(pipe))
				_, _ = syscall.Read(pipe[0], make([]byte, 1)) // blocks forever
				span.End()
			}()
			parent.Send("%s", <-said)
			continue
		}
		parent.Send("ok%s", strings.Join(reported, "; "))
		reported = nil
	}
}

// TestSpansBesideDatadogsProcessContext checks that readers find otelctx's spans in a service that
// also uses dd-trace-go, whichever of the two starts first. dd-trace-go publishes a process context
// without checking whether there is one already.
func TestSpansBesideDatadogsProcessContext(t *testing.T) {
	childproc.NeedReading(t)
	const foreign = "okprocess context is published by another library"
	for name, test := range map[string]struct {
		// words lists the commands to send, and said lists the expected answers.
		words, said []string
		// service is the expected service name in the process context, "" if there are two contexts.
		service string
		// separate is true if spans must be advertised in a mapping of their own.
		separate bool
	}{
		"Datadog first":                  {[]string{"datadog", "spans"}, []string{"ok", "ok"}, "theirs", true},
		"Datadog last":                   {[]string{"spans", "datadog"}, []string{"ok", "ok"}, "theirs", true},
		"Datadog first, and a resource":  {[]string{"datadog", "resource", "spans"}, []string{"ok", foreign, "ok"}, "theirs", true},
		"a resource last":                {[]string{"spans", "datadog", "resource"}, []string{"ok", "ok", foreign}, "theirs", true},
		"a resource first, Datadog last": {[]string{"resource", "spans", "datadog"}, []string{"ok", "ok", "ok"}, "", false},
		"without Datadog":                {[]string{"spans", "resource"}, []string{"ok", "ok"}, "ours", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := childproc.Start(t, "service", nil)
			for i, word := range test.words {
				said := c.Ask("%s", word)
				require.True(t, strings.HasPrefix(said, test.said[i]) && (said == "ok" || test.said[i] == foreign), "%s: %s", word, said)
			}
			var tid int
			var span string
			_, err := fmt.Sscan(c.Ask("span"), &tid, &span)
			require.NoError(t, err)

			p, err := reader.Open(c.PID())
			require.NoError(t, err)
			defer func() { assert.NoError(t, p.Close()) }()
			layout, err := p.ThreadLayout(t.Context())
			require.NoError(t, err)
			require.Len(t, layout.Carriers, 3)
			for _, carrier := range layout.Carriers {
				assert.Equal(t, reader.Advertised, carrier.Source)
				assert.True(t, carrier.Provable)
				assert.NoError(t, carrier.Err)
			}
			assert.Equal(t, test.separate, strings.Contains(layout.Advertisement.MappingName, "OTELCTX_THREADLOCAL"))
			pc, err := p.ProcessContext(t.Context())
			if test.service == "" {
				require.ErrorIs(t, err, reader.ErrInvalid, "readers must trust neither of two")
				assert.Nil(t, layout.Context)
			} else {
				require.NoError(t, err)
				assert.Equal(t, test.service, serviceName(pc))
			}

			// The service answers before its thread blocks, so wait until it does.
			require.Eventually(t, func() bool {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", c.PID(), tid))
				require.NoError(t, err)
				return strings.HasPrefix(string(b), fmt.Sprintf("%d ", syscall.SYS_READ))
			}, time.Minute, time.Millisecond)
			threads, err := p.Threads(t.Context())
			require.NoError(t, err)
			found := false
			for _, thread := range threads {
				if thread.TID == tid && assert.NotNil(t, thread.Span) {
					found = true
					assert.Equal(t, span, fmt.Sprintf("%x", thread.Span.SpanID))
					assert.True(t, thread.Span.Proven)
				}
			}
			assert.True(t, found)
			live, err := p.Spans(t.Context())
			require.NoError(t, err)
			assert.Len(t, live, 1)
		})
	}
}

func serviceName(pc *reader.ProcessContext) string {
	for _, kv := range pc.Resource.GetAttributes() {
		if kv.GetKey() == "service.name" {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}
