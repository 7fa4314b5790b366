// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package display

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
)

// WriteJSON writes v, indented, and a newline.
func WriteJSON(w io.Writer, v any) error {
	b, err := JSON(v, "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// JSON returns v as JSON in which every character is printable, on one line if indent is "".
func JSON(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return escapeJSON(bytes.TrimSuffix(b.Bytes(), []byte{'\n'})), nil
}

// escapeJSON escapes all characters of the JSON text b that are not printable. encoding/json escapes only
// ASCII control characters, but terminals also act on DEL, C1 control characters and bidirectional
// overrides. Valid JSON has them only inside strings, so every occurrence can be replaced.
func escapeJSON(b []byte) []byte {
	escaped := make([]byte, 0, len(b))
	for _, r := range string(b) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			escaped = append(escaped, string(r)...)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, high, low)
		default:
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		}
	}
	return escaped
}
