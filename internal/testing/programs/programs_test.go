// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestBuild checks that Build returns the requested variant even if another variant of the same program
// was built before.
func TestBuild(t *testing.T) {
	for _, test := range []struct {
		variant Variant
		want    string
	}{
		{Static, "CGO_ENABLED 0\n"},
		{Stripped, "-ldflags -s -w\nCGO_ENABLED 0\n"},
		{Static, "CGO_ENABLED 0\n"},
	} {
		out, err := exec.Command(Build(t, test.variant, "testdata/hello", ".")).Output()
		require.NoError(t, err)
		assert.Equal(t, test.want, string(out), test.variant.Name)
	}
}

func TestKeys(t *testing.T) {
	keys := map[string]string{}
	for _, v := range []Variant{Static, PIE, Stripped, Cgo, CgoPIE, CgoStatic} {
		for _, v := range []Variant{v, v.With(NextGo), v.For("arm64"), {Name: v.Name, Cgo: v.Cgo, Flags: v.Flags, Env: []string{"GOAMD64=v3"}}} {
			for _, pkg := range []string{".", "./other"} {
				key := v.key("/module", pkg)
				assert.Empty(t, keys[key], "%s has the key of %s", v.Name, keys[key])
				keys[key] = v.Name
			}
		}
	}
}

// TestScript checks that a script can be started immediately after it was written, even while other
// goroutines start processes.
func TestScript(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no shell")
	}
	var starters sync.WaitGroup
	for range 4 {
		starters.Go(func() {
			for range testenv.Rounds(50, 1000) {
				out, err := exec.Command(Script(t, `echo "got $1"`), "it").Output()
				if !assert.NoError(t, err) {
					return
				}
				assert.Equal(t, "got it\n", string(out))
			}
		})
	}
	starters.Wait()
}
