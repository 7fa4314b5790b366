// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package display

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strings"
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
func JSON(v any, indent string) ([]byte, error) { return encode(v, "", indent) }

// encode is like JSON. Each line except the first begins with prefix.
func encode(v any, prefix, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent(prefix, indent)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return escapeJSON(bytes.TrimSuffix(b.Bytes(), []byte{'\n'})), nil
}

// Object writes a JSON object member by member, so that a large object need not fit into memory. After an error, its
// methods write nothing; Close returns the error.
type Object struct {
	w       *bufio.Writer
	indent  string
	members int
	err     error
}

// NewObject begins an object, on one line if indent is "".
func NewObject(w io.Writer, indent string) *Object {
	o := &Object{w: bufio.NewWriter(w), indent: indent}
	o.write("{")
	return o
}

// Member writes a member.
func (o *Object) Member(name string, value any) {
	o.begin(name)
	o.value(value, 1)
}

// List writes a member whose value is an array.
func (o *Object) List(name string, values iter.Seq[any]) {
	o.begin(name)
	o.write("[")
	count := 0
	for v := range values {
		if o.err != nil {
			return
		}
		o.next(&count, 2)
		o.value(v, 2)
	}
	o.end(count, 1, "]")
}

// Map writes a member whose value is an object.
func (o *Object) Map(name string, members iter.Seq2[string, any]) {
	o.begin(name)
	o.write("{")
	count := 0
	for key, v := range members {
		if o.err != nil {
			return
		}
		o.next(&count, 2)
		o.key(key)
		o.value(v, 2)
	}
	o.end(count, 1, "}")
}

// Close ends the object and writes a newline.
func (o *Object) Close() error {
	o.end(o.members, 0, "}\n")
	if o.err == nil {
		o.err = o.w.Flush()
	}
	return o.err
}

func (o *Object) begin(name string) {
	o.next(&o.members, 1)
	o.key(name)
}

// next separates a member or an element from the previous one. count is the number of previous ones.
func (o *Object) next(count *int, depth int) {
	if *count++; *count > 1 {
		o.write(",")
	}
	o.newline(depth)
}

// end ends an object or array with count members or elements.
func (o *Object) end(count, depth int, bracket string) {
	if count > 0 {
		o.newline(depth)
	}
	o.write(bracket)
}

func (o *Object) key(name string) {
	o.value(name, 0)
	o.write(":")
	if o.indent != "" {
		o.write(" ")
	}
}

func (o *Object) value(v any, depth int) {
	var b []byte
	if o.err == nil {
		b, o.err = encode(v, strings.Repeat(o.indent, depth), o.indent)
	}
	o.write(string(b))
}

func (o *Object) newline(depth int) {
	if o.indent != "" {
		o.write("\n" + strings.Repeat(o.indent, depth))
	}
}

func (o *Object) write(s string) {
	if o.err == nil {
		_, o.err = o.w.WriteString(s)
	}
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
