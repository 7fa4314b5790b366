// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package display turns values into text for people and into JSON for programs. Neither contains characters that a
// terminal could interpret.
package display

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Escape replaces unprintable characters and bytes with escapes such as \x1b. These include control
// characters, line breaks, bidirectional overrides and invalid UTF-8.
func Escape(s string) string {
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

// These are the maximum numbers of characters of a key and of a value in text output.
const (
	MaxKey   = 60
	MaxValue = 200
)

// Key returns a key, truncated and quoted if necessary.
func Key(key string) string { return Cut(String(key), MaxKey) }

// Value returns a value of a JSON document as text: strings without quotes where that is unambiguous, other
// values as JSON.
func Value(v any) string {
	switch v := v.(type) {
	case string:
		return Cut(String(v), MaxValue)
	case []byte:
		return fmt.Sprintf("%s (base64 of %d bytes)", jsonText(v), len(v))
	default:
		return jsonText(v)
	}
}

func jsonText(v any) string {
	b, err := JSON(v, "")
	if err != nil {
		return Escape(err.Error())
	}
	return Cut(string(b), MaxValue)
}

// String returns s on one line. It is quoted if it contains characters that are not printable, could be
// mistaken for a value of another type, or begins or ends with a space.
func String(s string) string {
	if Escape(s) != s || json.Valid([]byte(s)) || strings.TrimSpace(s) != s || s == "" {
		return strconv.Quote(s)
	}
	return s
}

// Cut truncates s to the given number of characters, and adds a note if it does.
func Cut(s string, characters int) string {
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

// Age returns an age in its two largest units.
func Age(d time.Duration) string {
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

// Seconds returns a duration in seconds.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }

// Share returns part as a percentage of whole.
func Share[N ~uint64](part, whole N) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

// Name returns the name of a span, or "-".
func Name(name string) string {
	if name == "" {
		return "-"
	}
	return Key(name)
}

// Digits returns n with thousands separators.
func Digits(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Shell quotes s as one word for a shell.
func Shell(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:@%,"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(Escape(s), "'", `'\''`) + "'"
}

// Attribute returns the value of an attribute for a table.
func Attribute(resource map[string]any, key string) string {
	v, ok := resource[key]
	if !ok {
		return "-"
	}
	return Value(v)
}

// Attributes returns the attributes of a span as text.
func Attributes(attributes map[string]string) string {
	if len(attributes) == 0 {
		return "-"
	}
	var text []string
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		text = append(text, Key(key)+"="+Cut(String(attributes[key]), MaxKey))
	}
	return strings.Join(text, " ")
}
