// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package hostile

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRecordedCommandHasNoRights checks that a command recorded by an ordinary user inherits none of the
// file capabilities and descriptors of otelctx.
func TestRecordedCommandHasNoRights(t *testing.T) {
	otelctx := installedCommand(t)
	file, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	shows := func(argv ...string) string {
		argv = append(argv, "sh", "-c", "grep -E '^(Cap|NoNewPrivs)' /proc/self/status; ulimit -a; cd /proc/$$/fd; readlink 0; echo *")
		cmd := nobody.command(argv[0], argv[1:]...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		cmd.ExtraFiles = []*os.File{file} // inherited from the caller
		out, err := cmd.Output()
		require.NoError(t, err, stderr.String())
		return string(out)
	}
	alone := shows("env")
	assert.Equal(t, alone, shows(otelctx, "record", "--"))
	assert.Regexp(t, `CapPrm:\s+0{16}\nCapEff:\s+0{16}\n`, alone)
}
