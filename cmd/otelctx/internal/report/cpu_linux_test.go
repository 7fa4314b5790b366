// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/internal/testing/pseudoterminal"
	"github.com/otelctx/otelctx/reader"
)

// summarized returns a recording of two services, of which only shop publishes span names.
func summarized() *recording.Result {
	start := time.Unix(1700000000, 0)
	attributes := []reader.Attribute{{Key: "tenant", Value: "blue"}}
	return &recording.Result{
		Start: start, End: start.Add(10 * time.Second), Samples: 1000, Attributed: 700,
		Work: []recording.WorkUse{{Work: recording.Application, Samples: 600, Attributed: 540}, {Work: recording.Runtime}, {Work: recording.GarbageCollection, Samples: 400}},
		Rows: tally.Rows[tally.Count]{
			Processes: []process{{PID: 1, Service: "shop", Amount: 500, Attributed: 400}, {PID: 3, Service: "cart", Amount: 300}, {PID: 2, Service: "shop", Amount: 200, Attributed: 100}},
			Functions: []function{{Service: "shop", Function: "main.hash", Flat: 300, Cumulative: 300}, {Service: "shop", Function: "main.f[go.shape.struct { A int }]", Flat: 5, Cumulative: 900}},
			Endpoints: []name{
				{Service: "shop", Name: "GET /\x1b[31m", Count: 10, Amount: 500},
				{Service: "shop", Name: "GET /items", Count: 300, Amount: 400, Requests: &tally.Requests{Ended: 12345}},
				{Service: "shop", Name: "GET /feed", Count: 3, Amount: 300, Requests: &tally.Requests{Ended: 2}},
				{Service: "cart", Count: 200, Amount: 200},
				{Service: "cart", Name: "PUT /", Count: 2, Amount: 20, Requests: &tally.Requests{Ended: 10, AtLeast: true}},
			},
			Names:      []name{{Service: "shop", Name: "SELECT", Count: 1200, Amount: 6000}},
			Spans:      []span{{Service: "shop", Name: "SELECT", TraceID: [16]byte{0xab}, SpanID: [8]byte{0xcd}, Amount: 30, Unproven: 1, Attributes: attributes}, {Service: "cart", Amount: 2}},
			Traces:     []tally.Trace[tally.Count]{{Service: "shop", TraceID: [16]byte{0xab}, Spans: 3, Amount: 40}},
			Attributes: []attribute{{Key: "tenant", Value: "blue", Amount: 90}, {Key: "zone", Value: "true", Amount: 10}},
		},
	}
}

// write writes the tables of CPU time of all processes, grouped by group.
func write(t *testing.T, w io.Writer, r *recording.Result, tables Tables, group string) {
	t.Helper()
	var err error
	tables.Group, err = ParseGroup(group)
	require.NoError(t, err)
	require.NoError(t, (&Recording{CPU: r, Frequency: 100, Subject: "every process that publishes"}).WriteText(w, &tables))
}

// TestLostWithAllocations checks that lost samples are not taken for CPU time if some may be of allocations.
func TestLostWithAllocations(t *testing.T) {
	r := &recording.Result{Lost: 7, Allocated: &recording.Allocated{}}
	var out bytes.Buffer
	require.NoError(t, (&Recording{CPU: r, Alloc: r, Frequency: 100}).WriteText(&out, &Tables{}))
	assert.Contains(t, out.String(), "  Lost      -       7 samples, including those of allocations\n")
	r.Lost = 0
	out.Reset()
	require.NoError(t, (&Recording{CPU: r, Alloc: r, Frequency: 100}).WriteText(&out, &Tables{}))
	assert.Contains(t, out.String(), "  Lost      0.000s  0 samples\n")
}

func TestSummary(t *testing.T) {
	const head = "Recorded every process that publishes for 10s at 100 Hz\n" +
		"  CPU time  10.000s  1,000 samples\n  In spans  7.000s   70.0%\n  Lost      0.000s   0 samples\n"
	names := "\nTop span names by CPU time\n" +
		"  CPU      SHARE   SERVICE  SPANS SEEN  CPU/SPAN  NAME\n" +
		"  60.000s  600.0%  shop     1,200       50.0ms    SELECT\n"
	spans := "\nTop spans by CPU time\n" +
		"  CPU     SHARE  SERVICE  NAME    SPAN ID             TRACE ID  ATTRIBUTES\n" +
		"  0.300s  3.0%   shop     SELECT  cd000000, unproven  ab000000  tenant=blue\n" +
		"  0.020s  0.2%   cart     -       00000000            00000000  -\n"
	functions := "\nTop functions by their own CPU time\n" +
		"  CPU     SHARE  SERVICE  CUM     SHARE  FUNCTION\n" +
		"  3.000s  30.0%  shop     3.000s  30.0%  main.hash\n" +
		"  0.050s  0.5%   shop     9.000s  90.0%  main.f[go.shape.struct { A int }]\n"
	endpoints := "\nTop endpoints by CPU time\n" +
		"  CPU     SHARE  SERVICE  REQUESTS  CPU/REQUEST  ENDPOINT\n" +
		"  5.000s  50.0%  shop     ≥ 10      500.0ms      \"GET /\\x1b[31m\"\n" +
		"  4.000s  40.0%  shop     12,345    0.32ms       GET /items\n" +
		"  3.000s  30.0%  shop     ≥ 3       1000.0ms     GET /feed\n" +
		"  2.000s  20.0%  cart     ≥ 200     ≤ 10.0ms     -\n" +
		"  0.200s  2.0%   cart     ≥ 10      ≤ 20.0ms     PUT /\n"
	// columns maps each value of --group-by to the columns that the summary explains besides CPU and SHARE. If
	// there are no others, the value is SHARE.
	columns := map[string][]string{
		"":          {columnInSpans, columnCum, columnRequests, columnCPURequest, columnSpansSeen, columnCPUSpan},
		"span":      {columnSpansSeen, columnCPUSpan},
		"endpoint":  {columnRequests, columnCPURequest},
		"function":  {columnCum, columnFlat},
		"trace":     {columnSpansSeen},
		"service":   {columnInSpans},
		"attribute": {columnShare}, "attribute=zone": {columnShare},
	}
	for group, want := range map[string]string{
		"": "\nWhat the CPU time was used for\n" +
			"  CPU     SHARE  IN SPANS  WORK\n" +
			"  6.000s  60.0%  90.0%     application\n" +
			"  4.000s  40.0%  0.0%      garbage collection\n" +
			"\nTop processes by CPU time\n" +
			"  CPU     SHARE  IN SPANS  PID  SERVICE\n" +
			"  5.000s  50.0%  80.0%     1    shop\n" +
			"  3.000s  30.0%  0.0%      3    cart\n" +
			"  2.000s  20.0%  50.0%     2    shop\n" +
			functions + endpoints + names + spans,
		"span":     names + spans,
		"endpoint": endpoints,
		"function": functions + "\nTop functions by CPU time with what they call\n" +
			"  CPU     SHARE  SERVICE  FLAT    SHARE  FUNCTION\n" +
			"  9.000s  90.0%  shop     0.050s  0.5%   main.f[go.shape.struct { A int }]\n" +
			"  3.000s  30.0%  shop     3.000s  30.0%  main.hash\n",
		"trace": "\nTop traces by CPU time\n" +
			"  CPU     SHARE  SERVICE  SPANS SEEN  TRACE ID\n" +
			"  0.400s  4.0%   shop     3           ab000000\n",
		"service": "\nTop services by CPU time\n" +
			"  CPU     SHARE  IN SPANS  PROCESSES  SERVICE\n" +
			"  7.000s  70.0%  71.4%     2          shop\n" +
			"  3.000s  30.0%  0.0%      1          cart\n",
		"attribute": "\nTop attributes of spans by CPU time\n" +
			"  CPU     SHARE  KEY     VALUE\n" +
			"  0.900s  9.0%   tenant  blue\n" +
			"  0.100s  1.0%   zone    \"true\"\n",
		"attribute=zone": "\nTop attributes of spans by CPU time\n" +
			"  CPU     SHARE  KEY   VALUE\n" +
			"  0.100s  1.0%   zone  \"true\"\n",
		"attribute=none": "\nNo samples to group by attribute=none\n",
	} {
		var out bytes.Buffer
		write(t, &out, summarized(), Tables{Top: 10}, group)
		got, explained, _ := strings.Cut(out.String(), "\n\n  CPU  ")
		require.Equal(t, head+strings.TrimSuffix(want, "\n"), strings.TrimSuffix(got, "\n"), group)
		assert.Equal(t, len(columns[group]) > 0, strings.Contains(explained, "10ms for each sample\n  SHARE "), group)
		for _, c := range columnTexts[1:] {
			assert.Equal(t, slices.Contains(columns[group], c.column), strings.Contains(explained, "\n  "+c.column+"  "), "%s by %s", c.column, group)
		}
	}
	for _, group := range []string{"spans", "span=x", "attribute="} {
		_, err := ParseGroup(group)
		assert.ErrorContains(t, err, "use span, endpoint, trace, service, function, attribute or attribute=KEY")
	}
}

// TestSummaryOfOneService checks the summary of a single service that publishes no names: it has no column for the
// service and no tables of names, and it says how to publish names.
func TestSummaryOfOneService(t *testing.T) {
	r := summarized()
	r.Processes, r.Endpoints, r.Names, r.Spans = r.Processes[:1], nil, nil, r.Spans[1:]
	var out bytes.Buffer
	one := &Recording{CPU: r, Frequency: 100, Subject: "process 1", PID: 1}
	require.NoError(t, one.WriteText(&out, &Tables{Top: 1, NoFunctions: true}))
	assert.Equal(t, "Recorded process 1, shop for 10s at 100 Hz\n"+
		"  CPU time  10.000s  1,000 samples\n  In spans  7.000s   70.0%\n  Lost      0.000s   0 samples\n"+
		"\nTop spans by CPU time\n  CPU     SHARE  SPAN ID   TRACE ID\n"+
		"  0.020s  0.2%   00000000  00000000\n"+
		"\n  CPU    10ms for each sample\n  SHARE  of the CPU time of all samples\n"+
		"\nThe spans have no names: the service uses spanctx.WithSpanNames(false) or OTELCTX_SPAN_NAMES=false, or has too many names.\n", out.String())
}

// TestSummaryWithoutRoutes checks that the summary explains why endpoints such as GET have no route: otelhttp wraps
// a whole mux.
func TestSummaryWithoutRoutes(t *testing.T) {
	const hint = "\nThe endpoint has no route. Around a whole mux otelhttp learns it too late: put otelhttp around each handler.\n"
	for name, want := range map[string]bool{"GET": true, "POST": true, "GET /": false, "": false} {
		r := summarized()
		r.Endpoints[0].Name = name
		for group, shown := range map[string]bool{"": want, "endpoint": want, "span": false} {
			var out bytes.Buffer
			write(t, &out, r, Tables{Top: 1}, group)
			assert.Equal(t, shown, strings.HasSuffix(out.String(), hint), "%q by %q", name, group)
		}
	}
}

// TestSummaryOnTerminal checks that output on a terminal has colours, unless TERM is dumb or NO_COLOR is set.
func TestSummaryOnTerminal(t *testing.T) {
	for _, test := range []struct {
		term, noColor string
		colours       bool
	}{{"xterm", "", true}, {"xterm", "1", false}, {"dumb", "", false}} {
		t.Setenv("TERM", test.term)
		t.Setenv("NO_COLOR", test.noColor)
		terminal := pseudoterminal.Open(t, 80, 25)
		write(t, terminal.File, summarized(), Tables{Top: 1}, "trace")
		output := terminal.Output()
		assert.Equal(t, test.colours, strings.Contains(output, "\x1b"))
		if test.colours {
			got := strings.Split(output, "\n")
			assert.Equal(t, "\x1b[1mTop traces by CPU time\x1b[0m", got[5])
			assert.Regexp(t, `^\x1b\[2m  CPU .* TRACE ID\x1b\[0m$`, got[6])
			assert.Equal(t, "\x1b[33m  0.400s\x1b[0m  4.0%   shop     3           ab000000", got[7], "only the number has a colour")
		}
	}
}
