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

// A command that an ordinary user has recorded gets nothing of what otelctx has: no
// capability of its file, and none of its descriptors.
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
		cmd.ExtraFiles = []*os.File{file} // This one is its caller's.
		out, err := cmd.Output()
		require.NoError(t, err, stderr.String())
		return string(out)
	}
	alone := shows("env")
	assert.Equal(t, alone, shows(otelctx, "record", "--"))
	assert.Regexp(t, `CapPrm:\s+0{16}\nCapEff:\s+0{16}\n`, alone)
}
