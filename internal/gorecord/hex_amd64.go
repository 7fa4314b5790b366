// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build gc

package gorecord

// putHex stores the lower-case hexadecimal digits of a span id and, unless it is nil, those of
// the trace id before that. It is in assembly since Go takes five times as many instructions.
//
// Sound: it reads and writes what it was given, of which it knows the sizes.
//
//go:noescape
func putHex(span *[2 * 8]byte, trace *traceText, from *[idBytes]byte)
