// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package golden compares results with files in testdata, which the flag -update rewrites, and
// reads hex dumps and tables in documents. It is for tests only.
package golden

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Compare fails the test unless got equals the content of testdata/name.
func Compare[T string | []byte](t testing.TB, name string, got T) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil { //nolint:gosec // Golden files are committed.
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path) //nolint:gosec // The path comes from a test.
	if err != nil {
		t.Fatal(err)
	}
	// Files that Git has checked out on Windows may have CRLF line endings.
	if !bytes.Equal(want, []byte(got)) && strings.ReplaceAll(string(want), "\r\n", "\n") != string(got) {
		t.Errorf("%s has\n%s\nnot\n%s", path, want, got)
	}
}

// Hex reads a file with a hex dump, written by hand or by [hex.Dump], and returns the bytes. Each line
// has the offset of its first byte, the bytes, and optionally a comment after # or |. On a big-endian
// machine Hex skips the test, because the dumps are little-endian.
func Hex(t testing.TB, path string) []byte {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("this machine is big-endian")
	}
	text, err := os.ReadFile(path) //nolint:gosec // The path comes from a test.
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for line := range strings.Lines(string(text)) {
		if i := strings.IndexAny(line, "#|"); i >= 0 {
			line = line[:i]
		}
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if offset, err := strconv.ParseInt(fields[0], 16, 32); err != nil || int(offset) != len(all) {
			t.Fatalf("%s: %q is not at offset %x: %v", path, line, len(all), err)
		}
		b, err := hex.DecodeString(strings.Join(fields[1:], ""))
		if err != nil {
			t.Fatalf("%s: %q: %v", path, line, err)
		}
		all = append(all, b...)
	}
	return all
}

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
