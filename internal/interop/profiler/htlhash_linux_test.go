// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf"

	"github.com/otelctx/otelctx/internal/testing/programs"
)

// TestRecordedHashes checks that a recording has the hash that the eBPF profiler computes for each
// file.
func TestRecordedHashes(t *testing.T) {
	otelctx := programs.Build(t, programs.Static, "../../../cmd/otelctx", ".")
	burn := exec.Command("sh", "-c", "while :; do :; done")
	require.NoError(t, burn.Start())
	defer func() {
		_ = burn.Process.Kill()
		_ = burn.Wait()
	}()
	recorder := exec.Command(otelctx, "record", strconv.Itoa(burn.Process.Pid), "--duration=1s", "--freq=997", "--kernel", "--format=json", "--output=-")
	var stderr strings.Builder
	recorder.Stderr = &stderr
	output, err := recorder.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 4 {
		t.Skip(stderr.String())
	}
	require.NoError(t, err, stderr.String())
	var recording struct {
		Dictionary struct {
			MappingTable []struct {
				FilenameStrindex int
				AttributeIndices []int
			}
			AttributeTable []struct {
				KeyStrindex int
				Value       struct{ StringValue string }
			}
			StringTable []string
		}
	}
	require.NoError(t, json.Unmarshal(output, &recording))
	d, files := recording.Dictionary, 0
	for _, m := range d.MappingTable[1:] {
		ids := map[string]string{}
		for _, i := range m.AttributeIndices {
			ids[d.StringTable[d.AttributeTable[i].KeyStrindex]] = d.AttributeTable[i].Value.StringValue
		}
		path, got := d.StringTable[m.FilenameStrindex], ids["process.executable.build_id.htlhash"]
		if path == "[kernel.kallsyms]" {
			assert.Equal(t, libpf.FileIDFromKernelBuildID(ids["process.executable.build_id.gnu"]).StringNoQuotes(), got)
			continue
		}
		if _, err := os.Stat(path); err != nil {
			continue // such as [vdso]
		}
		want, err := libpf.FileIDFromExecutableFile(path)
		require.NoError(t, err)
		assert.Equal(t, want.StringNoQuotes(), got, path)
		files++
	}
	assert.Positive(t, files)
}
