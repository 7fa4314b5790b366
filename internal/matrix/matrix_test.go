// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/u-root/u-root/pkg/cpio"

	"github.com/otelctx/otelctx/internal/matrix/plan"
)

// console is what a machine might have written: two packages, the second of which was
// ended by a signal, in the midst of a test.
const console = "SeaBIOS\x1b[2J@@matrix fact release 6.1.0-50-amd64\r\n" +
	"@@matrix fact btf true\r\n" +
	"@@matrix start reader\r\n" +
	"\x16=== RUN   TestOne\r\n" +
	"    one_test.go:7: tried\r\n" +
	"\x16--- PASS: TestOne (0.00s)\r\n" +
	"\x16=== RUN   TestTwo\r\n" +
	"\x16=== RUN   TestTwo/part\r\n" +
	"    two_test.go:9: the kernel has no CONFIG_ANON_VMA_NAME: no names\r\n" +
	"\x16--- SKIP: TestTwo/part (0.00s)\r\n" +
	"\x16--- PASS: TestTwo (0.00s)\r\n" +
	"\x16=== RUN   TestThree\r\n" +
	"    three_test.go:9: not today\r\n" +
	"\x16--- SKIP: TestThree (0.00s)\r\n" +
	"\x16=== RUN   TestLong\r\n" +
	"    long_test.go:9: only make test-all runs this\r\n" +
	"\x16--- SKIP: TestLong (0.00s)\r\n" +
	"\x16=== NAME  \r\n" +
	"PASS\r\n" +
	"@@matrix end reader 0 12\r\n" +
	"[   99.000000] Oops\r\n" +
	"@@matrix start ringbuf\r\n" +
	"\x16=== RUN   TestFour\r\n" +
	"\x16--- FAIL: TestFour (0.00s)\r\n" +
	"\x16=== RUN   TestFive\r\n" +
	"@@matrix end ringbuf -1 3\r\n" +
	"@@matrix done\r\n"

// told returns what the console says, of a kernel with this configuration.
func told(t *testing.T, console, config string) *result {
	t.Helper()
	r, err := parse([]byte(console))
	require.NoError(t, err)
	for _, p := range r.programs {
		require.NoError(t, p.decode(t.Context()))
	}
	file := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	result := &result{kernel: &bootable{kernel: kernel{name: "6.1", arch: amd64}, config: file, version: "6.1.176-1"}, run: r}
	require.NoError(t, result.judge())
	return result
}

func TestJudge(t *testing.T) {
	r := told(t, console, "# CONFIG_ANON_VMA_NAME is not set\n")
	assert.Equal(t, "6.1.0-50-amd64", r.run.facts[plan.Release])
	assert.Equal(t, []row{
		{name: "reader", passed: 2, skipped: 3, seconds: 12},
		{name: "ringbuf", failed: 2, seconds: 3},
	}, r.rows)
	assert.Equal(t, []string{
		"reader: TestThree was skipped: not today",
		"ringbuf: TestFour failed",
		"ringbuf: TestFive failed",
		"ringbuf ended with code -1",
		"the kernel: [   99.000000] Oops",
	}, r.failures)
	assert.Equal(t, map[string]int{"reader TestTwo": 1}, r.skips["CONFIG_ANON_VMA_NAME"])

	report := format([]*result{r})
	assert.Contains(t, report, "| 6.1.0-50-amd64 | 6.1.176-1 | amd64 | no | yes |")
	assert.Contains(t, report, "| reader | 2/0/3, 12 s |")
	assert.Contains(t, report, "| internal/vma | not run |")
	assert.Contains(t, report, "| CONFIG_ANON_VMA_NAME | reader TestTwo (parts: 1) |\n")
}

// What a kernel has is no reason to skip a test.
func TestJudgeOfAKernelThatNamesMemory(t *testing.T) {
	r := told(t, console, "CONFIG_ANON_VMA_NAME=y\n")
	assert.Contains(t, r.failures, "reader: TestTwo/part was skipped: the kernel has no CONFIG_ANON_VMA_NAME: no names")
	assert.Empty(t, r.skips["CONFIG_ANON_VMA_NAME"])
}

func TestJudgeOfAMachineThatStops(t *testing.T) {
	until, _, _ := strings.Cut(console, "@@matrix end ringbuf")
	r := told(t, until, "")
	assert.Contains(t, r.failures, "ringbuf did not end")
	assert.Contains(t, r.failures, "the machine did not come to the end")

	r = told(t, "@@matrix failed mount /proc: no\r\n", "")
	assert.Equal(t, []string{"the machine did not come to the end: mount /proc: no"}, r.failures)

	_, err := parse([]byte("@@matrix end reader 0 1\n"))
	assert.ErrorContains(t, err, "out of place")
}

func TestPack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(file, []byte("what it does"), 0o600))
	p := &payload{
		plan:  plan.Plan{Programs: []plan.Program{{Name: "reader", Path: "/tree/reader/reader.test"}}},
		files: map[string]string{"/tree/reader/reader.test": file},
	}
	packed := filepath.Join(t.TempDir(), "initramfs")
	require.NoError(t, p.pack(packed))

	content, err := os.ReadFile(packed)
	require.NoError(t, err)
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(content)))
	require.NoError(t, err)
	files := map[string]string{}
	for _, r := range records {
		var text []byte
		if r.FileSize > 0 {
			text, err = io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
			require.NoError(t, err)
		}
		files[r.Name] = string(text)
	}
	assert.Equal(t, "what it does", files["tree/reader/reader.test"])
	assert.Contains(t, files["plan.json"], `"name":"reader"`)
	// Each directory is there before what is in it: kernels make none by themselves.
	for _, name := range []string{"tree", "tree/reader", "dev", "dev/console"} {
		assert.Contains(t, files, name)
	}
}

func TestConfigure(t *testing.T) {
	b := &bootable{kernel: kernel{options: []string{"ANON_VMA_NAME"}}}
	assert.Equal(t, "CONFIG_SMP=y\n# CONFIG_XFS_FS is not set\n# CONFIG_ANON_VMA_NAME is not set\n"+
		"CONFIG_LOCALVERSION=\"-named\"\nCONFIG_MODULES=n\nCONFIG_SYSTEM_TRUSTED_KEYRING=n\nCONFIG_SYSTEM_TRUSTED_KEYS=\"\"\nCONFIG_ANON_VMA_NAME=y\n",
		string(b.configure("CONFIG_SMP=y\nCONFIG_XFS_FS=m\n# CONFIG_ANON_VMA_NAME is not set\n")))
}

func TestParseFields(t *testing.T) {
	assert.Equal(t, map[string]string{"Package": "linux-image", "Depends": "kmod, linux-base (>= 4.3~)"},
		parseFields("Package: linux-image\nDepends: kmod, linux-base (>= 4.3~)\nDescription:\n long: text\n"))
}
