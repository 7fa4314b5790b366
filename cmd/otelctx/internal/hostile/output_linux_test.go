// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package hostile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestOutputs checks that the recorder needs limited memory for each output format, even if the attributes of
// a process change all the time. The attributes are short: this takes the most memory, because each attribute
// needs its own table entries.
func TestOutputs(t *testing.T) {
	otelctx := recordingCommand(t)
	attacker := startBusyService(t, self, busyservice.Records, busyservice.VariedMany)
	for _, ending := range []string{".json", ".pb.gz", ".otlp", ".jsonl", ".folded", ".html"} {
		t.Run(ending, func(t *testing.T) {
			if ending != ".json" && ending != ".pb.gz" { // These take as much memory, but less time than .json.
				testenv.NeedAll(t)
			}
			attacker.Stop() // Leave the processors to the recorder while it starts, and while it writes the file.
			r := self.recordTo(t, "p"+ending, otelctx, "--all", fmt.Sprintf("--freq=%d", 3*frequency)).recorded(attacker.PID())
			attacker.Continue()
			busyservice.AwaitUse(t, attacker, 1700*time.Millisecond) // About 5,000 samples.
			attacker.Stop()
			defer attacker.Continue()
			d := r.interrupt()
			t.Logf("%v of the processor, %d MB, %d samples; said: %s",
				r.cmd.ProcessState.UserTime()+r.cmd.ProcessState.SystemTime(), r.memory.Load()>>20, d.Samples, r.stderr.String())
			assert.Zero(t, d.Lost)
			assert.Positive(t, d.Attributed)
			content, err := os.ReadFile(r.file)
			require.NoError(t, err)
			require.NotEmpty(t, content)
			if ending == ".json" || ending == ".jsonl" {
				requireJSON(t, content)
			}
		})
	}
}

// requireJSON fails unless content is a sequence of JSON objects that each have the key "dictionary".
func requireJSON(t *testing.T, content []byte) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(content))
	for {
		var object map[string]json.RawMessage
		err := d.Decode(&object)
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		require.Contains(t, object, "dictionary")
	}
}
