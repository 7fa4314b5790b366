// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// In a C program with Go libraries, the Go runtime handles only a few signals. If a system call of
// otelctx raised any other signal, such as SIGXFSZ, the program would die.
func TestLibrary(t *testing.T) {
	testenv.NeedAll(t) // because the go command compiles the standard library again
	variant := func(mode string) programs.Variant {
		return programs.Variant{Name: mode, Cgo: true, Flags: []string{"-buildmode=" + mode}}
	}
	shared := programs.Build(t, variant("c-shared"), ".", "./testdata/library")
	archive := programs.Build(t, variant("c-archive"), ".", "./testdata/library")
	const source = "testdata/library/host.c"
	opens, linked := programs.C(t, source, "-ldl"), programs.C(t, source, "-DARCHIVE", archive, "-ldl", "-lpthread")
	second := programs.Public(t, shared, "second")

	for _, host := range []struct {
		name    string
		command []string
		stderr  string
	}{
		{"c-shared", []string{opens, shared}, "^$"},
		{"c-archive", []string{linked}, "^$"},
		{"two c-shared", []string{opens, shared, second}, "(?s)process context is published by another library.*another Go runtime in this process publishes its spans"},
	} {
		// File size limits in blocks of 512 bytes: no limit, too small for the span tables,
		// too small for the process context, and zero.
		for _, limit := range []string{"unlimited", "1024", "100", "0"} {
			t.Run(fmt.Sprintf("%s/limit=%s", host.name, limit), func(t *testing.T) {
				cmd := exec.Command("sh", append([]string{"-c", `ulimit -f ` + limit + ` && exec "$0" "$@"`}, host.command...)...)
				p := startProgram(t, cmd)
				p.expect(t, "ready")
				if limit == "unlimited" {
					service, live := inspect(t, cmd.Process.Pid)
					assert.Equal(t, "first", service)
					assert.Equal(t, []string{"first"}, live)
				}
				p.goOn(t)
				p.expect(t, "over")
				require.NoError(t, cmd.Wait())
				if limit == "unlimited" {
					assert.Regexp(t, host.stderr, p.stderr.String())
				} else {
					assert.Contains(t, p.stderr.String(), "RLIMIT_FSIZE")
				}
			})
		}
	}
}
