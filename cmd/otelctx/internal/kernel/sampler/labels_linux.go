// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"bytes"
	"encoding/hex"
	"unicode/utf8"
)

// Where a label that the program has read has its key and value.
const (
	labelKeySize = len(programLabel{}.Key)
	labelSize    = labelKeySize + len(programLabel{}.Value)
)

// spanOfLabels returns the span that labels name, as the program has read them, or none.
// If two labels have the same key, after the cut, the last one counts.
//
// The OpenTelemetry eBPF profiler takes bytes for labels in this way (tracer/labels.go).
// Strings end at the first zero. Values end before what is not UTF-8, unless that is all.
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

// validPrefix returns what comes before the first byte that is not of UTF-8.
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

// decodeID decodes an id in lower-case hexadecimal digits, and returns false if it is none.
func decodeID(to, text []byte) bool {
	if len(text) != hex.EncodedLen(len(to)) || bytes.ContainsAny(text, "ABCDEF") {
		return false
	}
	if _, err := hex.Decode(to, text); err != nil {
		return false
	}
	return bytes.ContainsFunc(text, func(r rune) bool { return r != '0' })
}
