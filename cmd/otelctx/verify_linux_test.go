// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestVerify checks that otelctx verify accepts a conforming publisher written in C. For a publisher that breaks a
// rule, it must exit with exitNotConforming and name the rule.
func TestVerify(t *testing.T) {
	t.Parallel()
	program := programs.C(t, "../../reader/testdata/threadcontext/publisher.c", "-pthread", "-rdynamic")
	for way, code := range map[string]int{"": exitOK, "no service.name": exitNotConforming} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(program, "2")
			cmd.Env = append(os.Environ(), "BREAK="+way)
			child := childproc.Run(t, cmd)
			for child.Receive() != "ready" {
			}
			pid := strconv.Itoa(child.PID())
			inWords := start(t, "verify", pid, "-d", "1s", "-v")
			got := otelctx(t, "verify", pid, "-d", "1s", "--json")
			assert.Equal(t, code, got.code, got.stderr)
			var d verifyDocument
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &d))
			assert.Equal(t, child.PID(), d.PID)
			got = inWords.wait(t)
			assert.Contains(t, got.stdout, "passed        4947-C1")
			if way != "" {
				assert.Equal(t, 1, d.Failed)
				assert.Contains(t, got.stdout, "failed        4719-D3")
				assert.Contains(t, got.stdout, "the resource has no service.name")
				assert.Contains(t, got.stderr, "1 of 43 rules are broken")
			}
			got = otelctx(t, "watch", pid, "--count", "1")
			assert.Contains(t, got.stdout, "threads in a span: 2 of 3")
			got = otelctx(t, "inspect", pid)
			assert.Contains(t, got.stdout, "thread_context  tlsdesc_v1_dev, otel_thread_ctx_v1 in /")
			got = otelctx(t, "inspect", pid, "--json")
			assert.Contains(t, got.stdout, strconv.Quote(program))
		})
	}
}

// TestUnreadThreads checks that inspect, watch and verify read the other threads of a process if one cannot be
// read, and say why.
func TestUnreadThreads(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(programs.C(t, "../../reader/testdata/threadcontext/publisher.c", "-pthread", "-rdynamic"), "3")
	cmd.Env = append(os.Environ(), "NO_ROBUST_LIST=1", "VFORK=1")
	child := childproc.Run(t, cmd)
	waiting := 0
	for line := child.Receive(); line != "ready"; line = child.Receive() {
		var tid, number int
		_, err := fmt.Sscan(line, &tid, &number)
		require.NoError(t, err)
		if number == 0 {
			waiting = tid
		}
	}
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", waiting))
		return err == nil && strings.Contains(string(stat), ") D ")
	}, testenv.Patience, time.Millisecond)
	pid := strconv.Itoa(child.PID())
	const reason = "the thread is in an uninterruptible sleep (state D)"
	for _, args := range [][]string{{"inspect", pid}, {"watch", pid, "--count", "1"}} {
		got := otelctx(t, args...)
		require.Zero(t, got.code, got.stderr)
		assert.Contains(t, strings.ToLower(got.stdout), "threads in a span: 2 of 4\n")
		assert.Contains(t, got.stdout, fmt.Sprintf("\n  thread %d was not read: %s\n", waiting, reason))
		got = otelctx(t, append(args, "--json")...)
		var d document.Process
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &d))
		assert.Equal(t, []document.UnreadThread{{TID: waiting, OwnTID: waiting, Error: reason}}, d.UnreadThreads)
		assert.Len(t, d.Threads, 2)
	}
	// Two readers at the same time may find a thread stopped by the other.
	got := otelctx(t, "verify", pid, "-d", "1s")
	assert.Zero(t, got.code, got.stderr)
	assert.Contains(t, got.stdout, fmt.Sprintf("passed        4947-C1   MUST   The variable names readable memory. (OTEP 4947, Thread-Local Context Record)\n"+
		"              thread %d was not read: %s\n", waiting, reason))
}

// TestVerifyProfile checks that verify --profile accepts the files that otelctx writes in every OTLP format, and
// rejects a broken file.
func TestVerifyProfile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"p.otlp", "p.json", "p.jsonl"} {
		path := filepath.Join(t.TempDir(), name)
		got := otelctx(t, "record", "--quiet", "--output", path, "--", "sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
		if got.code == exitNotPermitted {
			t.Skip(got.stderr)
		}
		require.Zero(t, got.code, got.stderr)
		assert.NotContains(t, got.stderr, "CPU time", "--quiet")
		assert.NotContains(t, got.stderr, path, "--quiet")
		got = otelctx(t, "verify", "--profile", path)
		assert.Zero(t, got.code, got.stdout)
		assert.Contains(t, got.stdout, "no rule is broken")
	}
	broken := filepath.Join(t.TempDir(), "broken.json")
	require.NoError(t, os.WriteFile(broken, []byte(`{"dictionary":{"stringTable":["x"]}}`), 0o600))
	got := otelctx(t, "verify", "--profile", broken)
	assert.Equal(t, exitNotConforming, got.code)
	assert.Contains(t, got.stdout, "string table: index 0 is not the zero value")
}

// TestVerifyProfileOfManyMessages checks that verify --profile refuses a file with more messages than it can check, and
// says so.
func TestVerifyProfileOfManyMessages(t *testing.T) {
	t.Parallel()
	const messages = 3 << 20 // empty stacks of two bytes each
	dictionary := bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, 7, protowire.BytesType), nil), messages)
	otlp := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), dictionary)
	json := `{"dictionary":{"stackTable":[` + strings.Repeat("{},", 20<<20) + `{}]}}`
	for name, content := range map[string][]byte{"many.otlp": otlp, "many.json": []byte(json), "many.jsonl": []byte(json)} {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		got := inProcess(t, "verify", "--profile", path)
		assert.Equal(t, exitOther, got.code, name)
		assert.Contains(t, got.stderr, "more than 2097152 messages and strings, which is the most that can be checked", name)
	}
}

// TestVerifyProfileBounded checks that verify --profile rejects files without an end, and those that are too large, before reading them.
func TestVerifyProfileBounded(t *testing.T) {
	dir := t.TempDir()
	endless, large, fifo := filepath.Join(dir, "endless.otlp"), filepath.Join(dir, "large.otlp"), filepath.Join(dir, "fifo.otlp")
	require.NoError(t, os.Symlink("/dev/zero", endless))
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	require.NoError(t, os.Truncate(large, 1<<40))
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for path, want := range map[string]string{endless: "not a regular file", fifo: "not a regular file", large: "more than the"} {
		got := otelctx(t, "verify", "--profile", path)
		assert.NotZero(t, got.code)
		assert.Contains(t, got.stderr, want)
	}
}

// TestVerifyForAges checks the longest duration.
func TestVerifyForAges(t *testing.T) {
	got := otelctx(t, "verify", strconv.Itoa(math.MaxInt32), "--duration", time.Duration(math.MaxInt64).String())
	assert.Equal(t, exitProcessGone, got.code, got.stderr)
}
