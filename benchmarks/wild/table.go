// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A table is between these lines of the document, after its name.
const tableBegin, tableEnd = ": begin -->\n", ": end -->"

// print writes the table to standard output, or into the document.
func (b *board) print(stdout io.Writer, patterns []pattern, looked []observer) error {
	table := b.text(patterns, looked)
	if b.output == "" {
		_, err := io.WriteString(stdout, table)
		return err
	}
	document, err := os.ReadFile(b.output)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+b.table+tableBegin, "<!-- "+b.table+tableEnd
	before, rest, ok := bytes.Cut(document, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the table %s", b.output, b.table)
	}
	text := string(before) + begin + table + end + string(after)
	return errors.Join(os.WriteFile(b.output, []byte(text), 0o600), os.Chmod(b.output, 0o644))
}

func (b *board) text(patterns []pattern, looked []observer) string {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "\n%s, %s on %s/%s, Linux %s\n\n%s\n", time.Now().UTC().Format(time.DateOnly), runtime.Version(),
		runtime.GOOS, runtime.GOARCH, kernel(), libraries())
	_, _ = text.WriteString("\n| Observer | patterns | without fault | with a wrong sample | samples | right | none | wrong | precision | recall | false positives | CPU | memory |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, o := range looked {
		var sum tally
		perfect, wrong := 0, 0
		for _, p := range patterns {
			t := b.rows[p.name()].Tallies[o.name]
			sum.Right, sum.None, sum.Wrong = sum.Right+t.Right, sum.None+t.None, sum.Wrong+t.Wrong
			sum.Shown, sum.Outside = sum.Shown+t.Shown, sum.Outside+t.Outside
			if t.None+t.Wrong == 0 {
				perfect++
			}
			if t.Wrong > 0 {
				wrong++
			}
		}
		_, _ = fmt.Fprintf(&text, "| %s | %d | %d | %d | %d | %d | %d | %d | %s | %s | %s | %s |\n", o.title, len(patterns), perfect, wrong, sum.samples(), sum.Right, sum.None, sum.Wrong,
			share(sum.Shown, sum.Shown+sum.Wrong), share(sum.Shown, sum.Shown+sum.None+sum.Wrong-sum.Outside),
			share(sum.Outside, sum.samples()-sum.Shown-sum.None-sum.Wrong+sum.Outside), b.costs[o.name])
	}
	_, _ = text.WriteString("\nEach observer's column: samples: right / none / wrong.\n\n| Pattern | Where it works | contract |")
	for _, o := range looked {
		_, _ = fmt.Fprintf(&text, " %s |", o.title)
	}
	_, _ = fmt.Fprintf(&text, "\n|---|---|---|%s\n", strings.Repeat("--:|", len(looked)))
	for _, p := range patterns {
		row := b.rows[p.name()]
		_, _ = fmt.Fprintf(&text, "| %s | %s | %s |", p.name(), p.about, row.says())
		for _, o := range looked {
			_, _ = fmt.Fprintf(&text, " %s |", row.Tallies[o.name])
		}
		_, _ = fmt.Fprintln(&text)
	}
	_, _ = fmt.Fprintln(&text)
	return text.String()
}

// says is what the contract says of the pattern.
func (r *row) says() string {
	return strings.Join(slices.DeleteFunc([]string{"shown", "nothing", "either"}, func(kind string) bool { return !r.Kinds[kind] }), ", ")
}

// share is a number of samples as a percentage of others.
func share(n, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(n)/float64(of))
}

// String is the cost as two cells of the table.
func (c *cost) String() string {
	if c == nil || c.Service == 0 {
		return "- | -"
	}
	return fmt.Sprintf("%.1f %% | %d MB", 100*c.Used.Seconds()/c.Service.Seconds(), c.Memory>>20)
}

// String is the tally as a cell of the table.
func (t *tally) String() string {
	short := ""
	if t.samples() < wanted {
		short = " (few)"
	}
	wrong := strconv.Itoa(t.Wrong)
	if t.Wrong > 0 {
		wrong = "**" + wrong + "**"
	}
	return fmt.Sprintf("%d: %d / %d / %s%s", t.samples(), t.Right, t.None, wrong, short)
}

func kernel() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(release))
}

// libraries says with which versions of which libraries the patterns were built.
func libraries() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var list []string
	for _, m := range info.Deps {
		for _, name := range patternLibraries {
			if strings.HasSuffix(m.Path, name) {
				list = append(list, m.Path+" "+m.Version)
			}
		}
	}
	return strings.Join(list, ", ")
}

// patternLibraries are how the paths of modules end that patterns are about.
var patternLibraries = []string{
	"otel/sdk", "otelhttp", "otelgrpc", "otelslog", "otelsql", "modernc.org/sqlite", "google.golang.org/grpc", "otel-profiling-go",
	"dd-trace-go/v2", "golang.org/x/sync", "twmb/franz-go", "plugin/kotel", "quic-go/quic-go", "coder/websocket", "nats-server/v2",
	"go-redis/v9", "connectrpc.com/connect", "otelconnect", "go-chi/chi/v5", "gin-gonic/gin", "echo/v4", "fiber/v2", "graphql-go",
	"gorm.io/gorm", "cron/v3", "failsafe-go", "ants/v2", "pond/v2", "sourcegraph/conc",
}
