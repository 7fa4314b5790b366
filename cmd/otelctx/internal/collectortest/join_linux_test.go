// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package collectortest

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/burner"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/internal/childproc"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){roleExporter: exporter})
}

// roleExporter is a burner that exports all its spans.
const roleExporter = "exporter"

func exporter(parent *childproc.Parent) {
	client, err := otlptracegrpc.New(context.Background())
	parent.Must(err)
	processor := sdktrace.NewBatchSpanProcessor(client, sdktrace.WithBlocking())
	burner.Processors = []sdktrace.SpanProcessor{processor}
	burner.Run(parent)
	parent.Must(processor.Shutdown(context.Background()))
}

// spans returns the spans that were received, by their numbers.
func (t *traces) spans() map[uint64]profile.Link {
	all := map[uint64]profile.Link{}
	for _, traces := range t.got {
		for _, rs := range traces.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					all[burner.Number(s.SpanID())] = profile.Link{TraceID: s.TraceID(), SpanID: s.SpanID()}
				}
			}
		}
	}
	return all
}

// recordTo has otelctx record a process and send that to a collector. The test is
// skipped, with what is missing, if this user may not record.
func recordTo(t *testing.T, endpoint string, pid int) {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "otelctx")
	build := exec.Command("go", "build", "-o", exe, ".")
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.Command(exe, "record", strconv.Itoa(pid), "--duration=2s", "--freq=997", "--otlp-endpoint="+endpoint).CombinedOutput()
	const notPermitted = 4
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == notPermitted {
		t.Skip(string(out))
	}
	require.NoError(t, err, string(out))
}

// A service exports its spans to a collector, and otelctx sends its profile to the same
// one: each link is a span that the service has exported, and each of those that it burned
// in by what the stack says is a link.
func TestJoin(t *testing.T) {
	receiver := &collector{}
	endpoint := receiver.listen(t)
	c := childproc.Start(t, roleExporter, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint)
	})
	require.Equal(t, "burning", c.Ask("%s", burner.Words(burner.Records, burner.ThreadSlots, burner.Started)))
	recordTo(t, endpoint, c.PID())
	c.Done()

	exported := receiver.traces.spans()
	linked, burned := map[profile.Link]bool{}, map[profile.Link]bool{}
	for _, p := range receiver.got {
		require.Equal(t, 1, p.ResourceProfiles().Len())
		resource := p.ResourceProfiles().At(0)
		name, _ := resource.Resource().Attributes().Get("service.name")
		require.Equal(t, "burner", name.Str())
		d := p.Dictionary()
		for _, s := range resource.ScopeProfiles().At(0).Profiles().At(0).Samples().All() {
			l := d.LinkTable().At(int(s.LinkIndex()))
			link := profile.Link{TraceID: l.TraceID(), SpanID: l.SpanID()}
			if s.LinkIndex() != 0 {
				linked[link] = true
			}
			truth, ok := burner.Truth(namesOf(d, s.StackIndex()))
			switch {
			case !ok:
			case truth == 0:
				assert.Zero(t, s.LinkIndex())
			default:
				require.Contains(t, exported, truth)
				assert.Equal(t, exported[truth], link)
				burned[exported[truth]] = true
			}
		}
	}
	for link := range linked {
		require.Equal(t, link, exported[burner.Number(link.SpanID)], "a link that is no span")
	}
	for span := range burned {
		require.Contains(t, linked, span)
	}
	t.Logf("%d spans exported, %d of them links, %d by the stack", len(exported), len(linked), len(burned))
	assert.Greater(t, len(burned), 20)
}

// namesOf returns the names of a stack's functions, the innermost first.
func namesOf(d pprofile.ProfilesDictionary, stack int32) []string {
	var names []string
	for _, f := range gotStack(d, stack) {
		if len(f.function) == 0 {
			names = append(names, "?")
		}
		names = append(names, f.function...)
	}
	return names
}
