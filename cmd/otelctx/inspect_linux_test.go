// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/golden"
)

func inspected(t *testing.T, c *childproc.Child, args ...string) result {
	t.Helper()
	return inProcess(t, append([]string{"inspect", strconv.Itoa(c.PID())}, args...)...)
}

// TestInspectGolden compares the text and the JSON output of inspect with golden files.
func TestInspectGolden(t *testing.T) {
	foreign, err := os.ReadFile("testdata/foreign.txtpb")
	require.NoError(t, err)
	for name, c := range map[string]*childproc.Child{
		"go":      startPublisher(t, "checkout", "7f1d6bcd"),
		"foreign": startForeign(t, string(foreign)),
		"empty":   startForeign(t, `resource {}`),
	} {
		pid := strconv.Itoa(c.PID())
		golden.Compare(t, name+".txt", printed(t, "inspect", pid))
		golden.Compare(t, name+".json", printed(t, "inspect", pid, "--json"))
		if name == "go" {
			assert.Contains(t, printed(t, "inspect", pid, "-v"), `  threadlocal.attribute_key_map  ["http.route",7]`)
		}
	}

	w := startWorker(t)
	// Skip the output before the carriers: it depends on the Go release and the machine.
	for name, out := range map[string]string{
		"worker.txt": printed(t, "inspect", w.pid), "worker.json": printed(t, "inspect", w.pid, "--json"),
	} {
		carriers := regexp.MustCompile(`(?s)\n(Carriers|  "carriers").*`).FindString(out)
		golden.Compare(t, name, w.anonymous(carriers))
	}
	require.Equal(t, "ended", w.Ask("end"))
	assert.Contains(t, printed(t, "inspect", w.pid), "\nThreads in a span: 0 of ")
	assert.Contains(t, printed(t, "inspect", w.pid, "--json"), `"threads": []`)
	w.Done()
}

// TestInspectSlots checks that inspect lists only the carriers of a service that publishes only slots.
func TestInspectSlots(t *testing.T) {
	t.Parallel()
	c := startBusyService(t, nil, busyservice.ThreadSlots)
	var got processDocument
	require.NoError(t, json.Unmarshal([]byte(inspected(t, c, "--json").stdout), &got))
	require.Len(t, got.Carriers, 1)
	assert.Equal(t, "thread_slots", got.Carriers[0].Kind)
}

func TestInspectCutsOnlyWhatPeopleRead(t *testing.T) {
	long := strings.Repeat("long ", 10_000) + "."
	c := startForeign(t, fmt.Sprintf(`resource { attributes { key: "long" value { string_value: %q } } }`, long))
	human := inspected(t, c)
	require.Zero(t, human.code, human.stderr)
	assert.Less(t, len(human.stdout), 1000)
	assert.Contains(t, human.stdout, "… (50001 characters, --json shows all)")

	var got processDocument
	require.NoError(t, json.Unmarshal([]byte(inProcess(t, "inspect", strconv.Itoa(c.PID()), "--json").stdout), &got))
	assert.Equal(t, long, got.Resource["long"])
}

// TestInspectEpochTimestamp checks how inspect shows a timestamp that counts from the Unix epoch, as in the first
// version of OTEP 4719, and one that lies in the future.
func TestInspectEpochTimestamp(t *testing.T) {
	for publishedAt, want := range map[uint64]string{
		1_700_000_000_000_000_000: "2023-11-14 22:13:20 UTC",
		math.MaxUint64:            "lies ahead",
	} {
		h := goodHeader(t)
		h.publishedAt = publishedAt
		got := inspected(t, startWriter(t, h, []byte{0x0a, 0}))
		require.Zero(t, got.code, got.stderr)
		assert.Contains(t, got.stdout, want)
	}
}

// volatile maps patterns of output that differs between runs or kernels to placeholders.
var volatile = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(`(Process|process) \d+`), `$1 PID`},
	{regexp.MustCompile(`("pid": ?)\d+`), `${1}1234`},
	{regexp.MustCompile(`Published( +).*`), `Published${1}TIME (AGE ago)`},
	{regexp.MustCompile(`"published_at_ns": \d+`), `"published_at_ns": 5678`},
	{regexp.MustCompile(`Mapping( +)\S*OTEL_CTX.* at 0x[0-9a-f]+`), `Mapping${1}NAME at ADDRESS`},
	{regexp.MustCompile(`"mapping": "\S*OTEL_CTX.*"`), `"mapping": "NAME"`},
	{regexp.MustCompile(`at 0x[0-9a-f]+, OTELCTX_`), `at ADDRESS, OTELCTX_`},
	{regexp.MustCompile(`"address": [1-9]\d*`), `"address": 5678`},
	{regexp.MustCompile(`at \d\d:\d\d:\d\d\.\d\d\d`), `at TIME`},
	{regexp.MustCompile(`"time_unix_nano":\d{19}`), `"time_unix_nano":5678`},
	{regexp.MustCompile(`(in a span: \d) of ([2-9]|\d\d+)`), `$1 of MANY`},
	{regexp.MustCompile(`"thread_count":([2-9]|\d\d+)`), `"thread_count":MANY`},
	{regexp.MustCompile(`("goroutine": ?)[1-9]\d*`), `${1}7`},
}

// printed runs otelctx and returns its standard output, with the [volatile] parts replaced. The test fails if
// otelctx fails or writes to standard error.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	got := inProcess(t, args...)
	require.Zero(t, got.code, got.stderr)
	assert.Empty(t, got.stderr)
	out := got.stdout
	for _, v := range volatile {
		out = v.pattern.ReplaceAllString(out, v.replacement)
	}
	return out
}

// TestInspectInTimeNamespace checks that inspect shows the right age of a context if the process that published
// it runs in another time namespace.
func TestInspectInTimeNamespace(t *testing.T) {
	t.Parallel()
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skipf("no unshare command: %v", err)
	}
	if out, err := exec.Command(unshare, "--time", "--boottime=100000", "true").CombinedOutput(); err != nil {
		t.Skipf("a time namespace needs a kernel with those, and CAP_SYS_ADMIN: %s", out)
	}
	c := startBusyService(t, func(cmd *exec.Cmd) {
		cmd.Args = []string{unshare, "--fork", "--time", "--boottime=100000", cmd.Path}
		cmd.Path = unshare
	}, busyservice.Records)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", c.PID()))
	require.NoError(t, err)
	got := otelctx(t, "inspect", strings.TrimSpace(string(children)))
	require.Zero(t, got.code, got.stderr)
	assert.Regexp(t, `\(\d+s ago\)`, got.stdout)
}
