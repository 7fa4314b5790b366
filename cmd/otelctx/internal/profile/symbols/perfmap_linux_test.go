// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParsePerfMap(t *testing.T) {
	m := &perfMap{functions: parsePerfMap("3000 10 third\n1000 20 first one\n0x1020 0x10 second\n1000 8 first again\n" +
		"\n10\n1000\nxyz 10 no\n1000 zz no\n2000 10 \nffffffffffffffff 10 last\n-1 5 no\n" +
		"4000 1 " + strings.Repeat("x", maxName+1) + "\n5000 1 no newline")}
	for address, want := range map[uint64]string{
		0xfff: "", 0x1000: "first again", 0x1008: "first one", 0x101f: "first one", 0x1020: "second", 0x1030: "",
		0x3000: "third", 0x2000: "", 0x4000: "", 0x5000: "no newline", 1<<64 - 1: "last", 0: "",
	} {
		if want == "" {
			assert.Empty(t, m.lookup(address), "%#x", address)
		} else {
			assert.Equal(t, []Line{{Function: want}}, m.lookup(address), "%#x", address)
		}
	}
	assert.Len(t, parsePerfMap(strings.Repeat("1 1 x\n", maxPerfFunctions+1)), maxPerfFunctions)
}

// TestPerfMap names code of no file by what the process says, as it goes on, and also when others
// have taken its name. It is this process, which has no such code.
func TestPerfMap(t *testing.T) {
	path := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid()) // The name is the process's own.
	t.Cleanup(func() { _ = os.Remove(path) })
	process := openProcess(t, os.Getpid())
	region := func() *Region {
		r := &Region{process: process.Process, mapping: Mapping{Start: 0x1000, Limit: 0x2000}}
		r.Attach()
		return r
	}
	early := region()
	assert.Empty(t, early.Locate(0x1000).Lines)

	// What is not the process's own regular file names nothing.
	for kind, prepare := range map[string]func() error{
		"pipe": func() error { return syscall.Mkfifo(path, 0o600) },
		"link": func() error {
			target := t.TempDir() + "/target"
			require.NoError(t, os.WriteFile(target, []byte("1000 10 forged\n"), 0o600))
			return os.Symlink(target, path)
		},
		"of another user": func() error {
			if os.Geteuid() != 0 {
				return os.Mkdir(path, 0o700)
			}
			require.NoError(t, os.WriteFile(path, []byte("1000 10 forged\n"), 0o600))
			return os.Chown(path, 65534, 65534)
		},
	} {
		require.NoError(t, prepare())
		process.RenewPerfMap()
		assert.Empty(t, region().Locate(0x1000).Lines, kind)
		require.NoError(t, os.Remove(path))
	}

	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	say := func(line string) {
		_, err := f.WriteString(line)
		require.NoError(t, err)
	}
	process.RenewPerfMap()
	say("1000 10 first\n")
	assert.Equal(t, []Line{{Function: "first"}}, early.Locate(0x1008).Lines)
	assert.Empty(t, early.Locate(0x1800).Lines)
	say("1800 10 second\n")
	assert.Empty(t, early.Locate(0x1808).Lines, "it is not read for each address")
	process.RenewPerfMap()
	require.NoError(t, os.Remove(path), "it is open")
	l := early.Locate(0x1808)
	assert.Equal(t, []Line{{Function: "second"}}, l.Lines)
	assert.Empty(t, l.Type)

	for range maxPerfMaps {
		process.files.holdsPerfMap(&Process{})
	}
	assert.Nil(t, process.perf.held.Load(), "it is read again")
	assert.NotEmpty(t, early.Locate(0x1008).Lines)

	require.NoError(t, f.Truncate(maxPerfMap+1)) // Zeros, which are no lines.
	say("\n1000 10 beyond the bound\n")
	process.RenewPerfMap()
	assert.Equal(t, []Line{{Function: "first"}}, early.Locate(0x1008).Lines)
}
