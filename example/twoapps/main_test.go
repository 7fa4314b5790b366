// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRun checks that the table distinguishes the telemetry of the two applications, and attributes
// the service that both call to neither.
func TestRun(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, 2))
	got := map[string]string{}
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(line)
		got[strings.Join(fields[:len(fields)-1], " ")] = fields[len(fields)-1]
	}
	want := map[string]string{
		"SIGNAL HTTP.APP ENDUSER.ID NAME":           "COUNT",
		"span - - server GET /auth/":                "6",
		"metric - - http.server.request.duration":   "6",
		"metric - - http.server.request.body.size":  "6",
		"metric - - http.server.response.body.size": "6",
	}
	for _, of := range []struct{ app, user, works string }{{"shop", "ann", "search"}, {"shop", "bob", "search"}, {"blog", "ann", "render"}} {
		want["span "+of.app+" "+of.user+" server GET /"+of.app+"/"] = "2"
		want["span "+of.app+" "+of.user+" client HTTP GET"] = "2"
		want["span "+of.app+" "+of.user+" internal "+of.works] = "2"
		want["log "+of.app+" "+of.user+" rendered a page"] = "2"
	}
	for app, count := range map[string]string{"shop": "4", "blog": "2"} {
		for _, name := range []string{
			"app.pages", "http.client.request.body.size", "http.client.request.duration",
			"http.server.request.body.size", "http.server.request.duration", "http.server.response.body.size",
		} {
			want["metric "+app+" - "+name] = count
		}
	}
	assert.Equal(t, want, got)
}
