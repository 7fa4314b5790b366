// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/spanctx"
)

// roleDatadog is the name of a child process in which dd-trace-go sets labels. It runs in a separate
// process because dd-trace-go publishes a process context and never withdraws it.
const roleDatadog = "datadog"

// labels holds the labels that a profile has for a span (Got), and the labels that dd-trace-go's
// rules require for that span (Rules).
type labels struct{ Got, Rules map[string]string }

// spanLabels starts a request with a child span, writes a goroutine profile to a file, and returns
// the child's labels.
func spanLabels(file string, tracer trace.Tracer) (l labels, err error) {
	id := func(span trace.Span) string {
		id := span.SpanContext().SpanID()
		return strconv.FormatUint(binary.BigEndian.Uint64(id[:]), 10)
	}
	ctx, request := tracer.Start(context.Background(), "GET /cart")
	defer request.End()
	_, span := tracer.Start(ctx, "query")
	defer span.End()
	l.Rules = map[string]string{
		"span id": id(span), "local root span id": id(request), "trace endpoint": "GET /cart", "trace id": span.SpanContext().TraceID().String(),
	}
	var encoded bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&encoded, 0); err != nil {
		return l, err
	}
	if err := os.WriteFile(file, encoded.Bytes(), 0o600); err != nil {
		return l, err
	}
	parsed, err := profile.Parse(&encoded)
	if err != nil {
		return l, err
	}
	for _, sample := range parsed.Sample {
		if strings.Join(sample.Label["span id"], "") == id(span) {
			l.Got = map[string]string{}
			for key, values := range sample.Label {
				l.Got[key] = strings.Join(values, " ")
			}
		}
	}
	return l, nil
}

// setDatadogLabels is the main function of the child process. It sends the labels to the parent.
func setDatadogLabels(parent *childproc.Parent) {
	provider, err := byDatadog(true)()
	parent.Must(err)
	l, err := spanLabels(os.DevNull, provider.Tracer("benchmarks"))
	parent.Must(err)
	text, err := json.Marshal(l)
	parent.Must(err)
	parent.Send("%s", text)
	parent.Receive()
}

// TestDatadogLabels checks that dd-trace-go sets no labels that contradict the rules, that
// WithDatadogLabels sets all labels that the rules require, and that go tool pprof displays ours.
func TestDatadogLabels(t *testing.T) {
	var theirs labels
	require.NoError(t, json.Unmarshal([]byte(childproc.Start(t, roleDatadog, nil).Receive()), &theirs))
	for _, key := range []string{"span id", "trace endpoint"} {
		assert.Contains(t, theirs.Got, key)
	}
	for key, value := range theirs.Got {
		assert.Equal(t, theirs.Rules[key], value, "dd-trace-go's %q", key)
	}

	file := filepath.Join(t.TempDir(), "goroutines.pb.gz")
	ours, err := spanLabels(file, tracer(t, newSpanProcessor(t, spanctx.WithDatadogLabels(true))))
	require.NoError(t, err)
	for key, value := range ours.Rules {
		assert.Equal(t, value, ours.Got[key], "our %q", key)
	}
	tags, err := exec.Command("go", "tool", "pprof", "-tags", file).CombinedOutput()
	require.NoError(t, err, "%s", tags)
	for key, value := range ours.Rules {
		assert.Regexp(t, `(?s)\b`+key+`: Total.*`+value, string(tags))
	}
}
