// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package elffile reads ELF files that may be hostile, and the table of functions that the Go runtime uses
// for tracebacks (.gopclntab), which every Go executable has, even a stripped one.
//
// It supports files for amd64 and arm64 (little-endian) that have section headers, and the tables of Go 1.20
// and later. It reads them in pieces on demand, never as a whole, and caps every size. Its types are not safe
// for concurrent use.
package elffile
