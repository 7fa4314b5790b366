// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"os"
	"strings"
	"testing"
)

// Rows returns the rows of the Markdown table below the comment
//
//	<!-- table: name -->
//
// in a file, without the table's header. Cells are trimmed, and backquotes around a whole cell are
// removed. Rows fails the test unless there is exactly one such table and it has rows below its
// header.
func Rows(t *testing.T, file, name string) [][]string {
	t.Helper()
	text, err := os.ReadFile(file) //nolint:gosec // The path comes from a test.
	if err != nil {
		t.Fatal(err)
	}
	mark := "<!-- table: " + name + " -->\n"
	_, table, found := strings.Cut(string(text), mark)
	if !found || strings.Contains(table, mark) {
		t.Fatalf("%s: want exactly one table %q", file, name)
	}
	var rows [][]string
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i, cell := range cells {
			cell = strings.TrimSpace(cell)
			if inner := strings.Trim(cell, "`"); len(inner) == len(cell)-2 && !strings.Contains(inner, "`") {
				cell = inner
			}
			cells[i] = cell
		}
		rows = append(rows, cells)
	}
	const head = 2
	if len(rows) <= head {
		t.Fatalf("%s: table %q is empty", file, name)
	}
	return rows[head:]
}
