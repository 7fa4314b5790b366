// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"bytes"
	"encoding/hex"
	"unicode/utf8"
)

// Sizes of a label as read by the BPF program.
const (
	labelKeySize = len(programLabel{}.Key)
	labelSize    = labelKeySize + len(programLabel{}.Value)
)

// spanOfLabels returns the span whose ids are in labels, which the BPF program has read, or the zero Span if an
// id is missing or invalid. If two labels have the same key after truncation, the last one wins.
//
// The conversion of bytes to text follows the OpenTelemetry eBPF profiler (tracer/labels.go): strings end at
// the first zero byte. Values also end before the first invalid UTF-8 byte. A label is ignored if that leaves
// nothing of its value.
func spanOfLabels(labels []byte) Span {
	var trace, span []byte
	for ; len(labels) >= labelSize; labels = labels[labelSize:] {
		key, value := untilZero(labels[:labelKeySize]), untilZero(labels[labelKeySize:labelSize])
		text := validPrefix(value)
		if len(text) == 0 && len(value) > 0 {
			continue
		}
		switch string(key) {
		case "trace_id":
			trace = text
		case "span_id":
			span = text
		}
	}
	s := Span{Carrier: Labels, Proven: true}
	if !decodeID(s.TraceID[:], trace) || !decodeID(s.SpanID[:], span) {
		return Span{}
	}
	return s
}

func untilZero(b []byte) []byte {
	b, _, _ = bytes.Cut(b, []byte{0})
	return b
}

// validPrefix returns the longest prefix that is valid UTF-8.
func validPrefix(b []byte) []byte {
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			return b[:i]
		}
		i += size
	}
	return b
}

// decodeID decodes an id of lower-case hexadecimal digits. It returns false if text is not a valid id.
func decodeID(id, text []byte) bool {
	if len(text) != hex.EncodedLen(len(id)) || bytes.ContainsAny(text, "ABCDEF") {
		return false
	}
	if _, err := hex.Decode(id, text); err != nil {
		return false
	}
	return bytes.ContainsFunc(text, func(r rune) bool { return r != '0' })
}
