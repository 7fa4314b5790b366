// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package symbols names the code that another process runs: which file an address is
// mapped from, and the functions there, with file and line where the file tells.
//
// Go functions are found by the runtime's own table (.gopclntab), which every Go
// executable has, also a stripped one, and with the calls that the compiler inlined;
// others by the symbol table of their ELF file, or of a file with its debugging information
// that has the same build id. Code that was compiled at run time is named by /tmp/perf-PID.map.
// What nothing names stays unnamed.
//
// Limits: files of 64-bit little-endian amd64 and arm64, with section headers; Go 1.20
// and later, of older Go what the symbol table has; no debugging information but names, so that
// functions other than Go's have a name alone. The wrappers that the Go compiler makes
// are shown, which the runtime's own tracebacks leave out.
//
// The files belong to whoever runs the process: nothing in them is trusted. They are
// read in pieces as needed, never as a whole, and every size is capped.
package symbols
