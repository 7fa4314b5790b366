// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package allocs_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
)

// TestImport checks that the import turns sampling on in a program that does not read samples.
func TestImport(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{"unsampled": "0", "sampled": "524288"} {
		out, err := exec.Command(programs.Build(t, programs.Static, ".", "./testdata/"+program)).Output()
		require.NoError(t, err)
		assert.Equal(t, want, strings.TrimSpace(string(out)), program)
	}
}
