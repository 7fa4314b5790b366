// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// lineOf returns the line of a listing that is about c, its columns parted by a
// single space, or "" if there is none.
func lineOf(listing string, c *childproc.Child) string {
	m := regexp.MustCompile(fmt.Sprintf(`(?m)^%d .*$`, c.PID())).FindString(listing)
	return regexp.MustCompile(` {2,}`).ReplaceAllString(m, " ")
}

func TestListShowsEveryPublisher(t *testing.T) {
	children := []*childproc.Child{
		startPublisher(t, "checkout", "a"),
		startPublisher(t, "cart", "b"),
		startPublisher(t, "cart", "c"),
	}
	nameless := startForeign(t, &processcontextpb.ProcessContext{Resource: &resourcepb.Resource{}})
	hostile := startForeign(t, &processcontextpb.ProcessContext{Resource: &resourcepb.Resource{
		Attributes: []*commonpb.KeyValue{{Key: "service.name", Value: text("\x1b[31m\nred")}},
	}})
	idle := startIdle(t)

	got := otelctx(t, "list")
	require.Zero(t, got.code, got.stderr)
	assert.Regexp(t, `^PID +SERVICE +INSTANCE +SDK +AGE\n`, got.stdout)
	for i, want := range []string{"checkout a", "cart b", "cart c"} {
		assert.Regexp(t, want+` go/opentelemetry/1\.47\.0 \d+s$`, lineOf(got.stdout, children[i]))
	}
	assert.Regexp(t, `^\d+ - - - \d+s$`, lineOf(got.stdout, nameless))
	assert.Regexp(t, `^\d+ "\\x1b\[31m\\nred" - - \d+s$`, lineOf(got.stdout, hostile))
	assert.Empty(t, lineOf(got.stdout, idle))
	assert.NotContains(t, got.stdout, "\x1b")

	children[0].Kill()
	got = otelctx(t, "list")
	require.Zero(t, got.code, got.stderr)
	assert.Empty(t, lineOf(got.stdout, children[0]))
	assert.NotEmpty(t, lineOf(got.stdout, children[1]))
}

func TestListJSONIsAnArrayOfWhatInspectPrints(t *testing.T) {
	children := []*childproc.Child{startPublisher(t, "checkout", "a"), startPublisher(t, "cart", "b")}
	got := otelctx(t, "list", "--json")
	require.Zero(t, got.code, got.stderr)

	var listed []json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &listed))
	var pids []int
	byPID := map[int]json.RawMessage{}
	for _, raw := range listed {
		var d document
		require.NoError(t, json.Unmarshal(raw, &d))
		pids = append(pids, d.PID)
		byPID[d.PID] = raw
	}
	assert.True(t, slices.IsSorted(pids), pids)
	for _, c := range children {
		inspected := otelctx(t, "inspect", "--json", strconv.Itoa(c.PID()))
		require.Zero(t, inspected.code, inspected.stderr)
		require.Contains(t, byPID, c.PID())
		assert.JSONEq(t, inspected.stdout, string(byPID[c.PID()]))
	}
}

func TestListMentionsWhatCannotBeRead(t *testing.T) {
	updating := goodHeader(t)
	updating.publishedAt = 0
	wrongVersion := goodHeader(t)
	wrongVersion.version = 99
	busy := startWriter(t, updating, []byte{0x0a, 0})
	invalidHeader := startWriter(t, wrongVersion, []byte{0x0a, 0})
	invalidPayload := startWriter(t, goodHeader(t), []byte("\x0a\x7fnot protobuf"))

	for _, args := range [][]string{{"list"}, {"list", "--json"}} {
		got := otelctx(t, args...)
		assert.Zero(t, got.code)
		for c, want := range map[*childproc.Child]string{
			busy:           "is being updated",
			invalidHeader:  "invalid process context: .*version 99",
			invalidPayload: "invalid process context: .*payload",
		} {
			assert.Regexp(t, fmt.Sprintf(`(?m)^otelctx: pid %d: .*%s`, c.PID(), want), got.stderr)
			assert.Empty(t, lineOf(got.stdout, c))
			assert.NotContains(t, got.stdout, fmt.Sprintf(`"pid": %d,`, c.PID()))
		}
	}
}

func TestListCountsWhatIsForbiddenOnce(t *testing.T) {
	for range 2 {
		childproc.Start(t, roleHidden, nil).Expect("hidden")
	}
	got := otelctxAsNobody(t, "list")
	assert.Zero(t, got.code)
	assert.Regexp(t, `(?m)^otelctx: processes that could not be examined for lack of permission: ([2-9]|\d{2,})$`, got.stderr)
	assert.Equal(t, 1, strings.Count(got.stderr, "CAP_SYS_PTRACE, which root has"))
}
