// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// escape replaces unprintable characters and bytes with escapes such as \x1b. These include control
// characters, line breaks, bidirectional overrides and invalid UTF-8.
func escape(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if unicode.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			b.WriteString(s[:size])
		} else {
			quoted := strconv.Quote(s[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[size:]
	}
	return b.String()
}

// These are the heads of columns that occur in several tables.
const (
	columnService    = "SERVICE"
	columnTraceID    = "TRACE ID"
	columnSpanID     = "SPAN ID"
	columnLocalRoot  = "LOCAL ROOT"
	columnWaitingFor = "WAITING FOR"
	columnWall       = "  WALL"
	columnRunning    = "RUNNING"
	columnMainWait   = "MAIN WAIT"
	columnEndpoint   = "ENDPOINT"
)

// These are the maximum numbers of characters of a key and of a value in text output.
const (
	maxKeyText   = 60
	maxValueText = 200
)

// keyText returns a key, truncated and quoted if necessary.
func keyText(key string) string { return cutShort(stringText(key), maxKeyText) }

// valueText returns a value of [document] as text: strings without quotes where that is unambiguous, other
// values as JSON.
func valueText(v any) string {
	switch v := v.(type) {
	case string:
		return cutShort(stringText(v), maxValueText)
	case []byte:
		return fmt.Sprintf("%s (base64 of %d bytes)", jsonText(v), len(v))
	default:
		return jsonText(v)
	}
}

func jsonText(v any) string {
	b, err := encodeJSON(v, "")
	if err != nil {
		return escape(err.Error())
	}
	return cutShort(string(b), maxValueText)
}

// stringText returns s on one line. It is quoted if it contains characters that are not printable, could be
// mistaken for a value of another type, or begins or ends with a space.
func stringText(s string) string {
	if escape(s) != s || json.Valid([]byte(s)) || strings.TrimSpace(s) != s || s == "" {
		return strconv.Quote(s)
	}
	return s
}

// cutShort truncates s to the given number of characters, and adds a note if it does.
func cutShort(s string, characters int) string {
	n := utf8.RuneCountInString(s)
	if n <= characters {
		return s
	}
	end := 0
	for range characters {
		_, size := utf8.DecodeRuneInString(s[end:])
		end += size
	}
	return fmt.Sprintf("%s… (%d characters, --json shows all)", s[:end], n)
}

// ageText returns an age in its two largest units.
func ageText(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Hour:
		return d.Truncate(time.Second).String()
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	}
}

// table aligns the cells of rows in columns. Cells must not contain tabs or line breaks.
func table(rows [][]string) []byte {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	_ = t.Flush() // Writing to a bytes.Buffer does not fail.
	return b.Bytes()
}
