// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGenerate checks that the page summarizes all observers and lists only patterns with a fault, and that a CSV
// file without the required lines at its start is rejected.
func TestGenerate(t *testing.T) {
	dir := t.TempDir()
	output := filepath.Join(dir, "results.md")
	for name, text := range map[string]string{
		"scoreboard.csv": `# date: 2026-11-25
# machine: a fast one
publish,pattern,about,contract,observer,samples,right,none,wrong,shown,outside
default,good,all is well,shown,record,10,10,0,0,10,0
default,good,all is well,shown,goroutine profile,10,4,6,0,4,0
default,lost,"missing, and wrong",shown,record,10,4,4,2,4,0
default,lost,"missing, and wrong",shown,goroutine profile,10,10,0,0,10,0
default,outside,after it,nothing,record,5,4,0,1,0,1
default,outside,after it,nothing,goroutine profile,5,5,0,0,0,0
all,good,all is well,shown,record,10,10,0,0,10,0
`,
		"other.csv": "# machine: a slow one\n# date: 2026-11-24\nbenchmark,ns/op\nSpan,420\n",
		"bench.csv": `# date: 2026-11-24
# machine: a slow one
shape,processor,x-base,B/op,allocs/op
flat,noop,1.01,944,3
flat,default,1.56,1264 ± 1 %,4
child,noop,0.99,944,3
child,default,1.59,1264,4
`,
		"before.csv": `# date: 2026-11-23
# machine: a slow one
what,before,aim,file,row,column,per
service,1.29,1.05,service,gogc=100 processor=default,x-base,
collections,1.50,1.00,service,gogc=100 processor=default,gcs/kop,gogc=100 processor=noop
a collection,376 µs,70 µs,collection,spans=0,more-ns,
`,
		"service.csv": `# date: 2026-11-24
# machine: a slow one
gogc,processor,x-base,x-high,x-low,gcs/kop
100,noop,1.00,1.02,0.98,16.0
100,default,1.04,1.06,1.01,16.8
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.NoError(t, generate(dir, output))
	got, err := os.ReadFile(output)
	require.NoError(t, err)
	for _, line := range []string{
		"- machine: a fast one\n",
		"| default | record | 3 | 1 | 2 | 25 | 82.35 % | 70.00 % | 20.00 % |\n",
		"Patterns with a fault outside the goroutine profile: 2 of 3.",
		"| lost | missing, and wrong | shown | 10: 4 none, **2 wrong** |  |\n",
		"| outside | after it | nothing | 5: 0 none, **1 wrong** |  |\n",
		"| all | record | 1 | 1 | 0 | 10 | 100.00 % | 100.00 % | - |\n",
		"| --- | --: |\n| Span | 420 |\n",
		"| default: thread slots, goroutine table, goroutine record and names | 1.56 | 1.59 | 1 | 320 |\n",
		"| service | 1.29 | 1.04 [1.01 1.06] | 1.05 |\n",
		"| collections | 1.50 | 1.05 | 1.00 |\n",
		"| a collection | 376 µs |  | 70 µs |\n",
	} {
		assert.Contains(t, string(got), line)
	}
	assert.NotContains(t, string(got), "| good |")
	assert.NotContains(t, string(got), "| all | goroutine profile |", "it was not measured")
	for text, want := range map[string]string{
		"# date: 2026-11-25\n# machine: one\na,b\nc\n": "scoreboard.csv: ",
		"# date: 2026-11-25\na,b\nc,d\n":               `no line "# machine: "`,
		"# machine: one\na,b\nc,d\n":                   `no line "# date: "`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "scoreboard.csv"), []byte(text), 0o600))
		assert.ErrorContains(t, generate(dir, output), want)
	}
}

func TestConvert(t *testing.T) {
	var written strings.Builder
	suffix := fmt.Sprintf("-%d", runtime.GOMAXPROCS(0))
	require.NoError(t, convert(&written, strings.NewReader(strings.ReplaceAll(`goos: linux
cpu: Fast CPU
BenchmarkService/gogc=100/processor=noop-N  	 60	 152788 ns/op	 1.004 x-base	 38319 B/op
BenchmarkService/gogc=100/processor=names-N  	 60	 999600 ns/op	 1.1 x-base	 40178 B/op	 0 gcs/kop
BenchmarkService/gogc=100/processor=names-N  	 60	 1099560 ns/op	 1.1 x-base	 40178 B/op	 0 gcs/kop
BenchmarkService/gogc=100/processor=names-N  	 60	 899640 ns/op	 1.2 x-base	 40178 B/op	 0 gcs/kop
BenchmarkService has no figures here
PASS
`, "-N", suffix)), time.Date(2026, 11, 25, 1, 2, 3, 0, time.UTC), "Linux 6.18"))
	comments, rows, _ := strings.Cut(written.String(), "gogc,")
	assert.Contains(t, comments, "# date: 2026-11-25\n")
	assert.Contains(t, comments, "Fast CPU")
	assert.Contains(t, comments, fmt.Sprintf(", GOMAXPROCS=%d, Linux 6.18, go", runtime.GOMAXPROCS(0)))
	assert.Contains(t, comments, "# by: go -C benchmarks test -bench BenchmarkService -benchtime 60x\n# noise: noop against itself: x-base from 1.00 to 1.00 in 1 comparisons\n")
	assert.Equal(t, `processor,ns/op,x-base,B/op,gcs/kop
100,noop,153 µs,1.00,38319,
100,names,1.00 ms ± 10 %,1.10 ± 5 %,40178,0
`, rows)
	written.Reset()
	require.NoError(t, convert(&written, strings.NewReader("BenchmarkRead/threads=1 60 1 ns/op\nBenchmarkRead/threads=1 50 1 ns/op\n"), time.Time{}, ""))
	assert.Contains(t, written.String(), "# by: go -C benchmarks test -bench BenchmarkRead -count 2\nthreads,ns/op\n")
	assert.Error(t, convert(io.Discard, strings.NewReader("FAIL\n"), time.Time{}, ""))
	const differing = "BenchmarkA/a=1 60 1 ns/op\nBenchmarkA/a=1/b=2 60 1 ns/op\n"
	assert.EqualError(t, convert(io.Discard, strings.NewReader(differing), time.Time{}, ""),
		"BenchmarkA/a=1: its keys differ from those of the other benchmarks")
}
