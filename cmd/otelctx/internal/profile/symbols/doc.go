// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package symbols names the code that another process runs. It tells which file an
// address is mapped from, and the functions there, with file and line where the file
// tells.
//
// Go functions are found by the runtime's own table (.gopclntab), with the calls that the
// compiler inlined. Every Go executable has it, also a stripped one. Others are found by
// the symbol table of their ELF file, or of a file with the same build id that has its
// debugging information. Code that was compiled at run time is named by the last line of
// /tmp/perf-PID.map that covers it. What nothing names stays unnamed.
//
// A process may map other code at an address at any time. The caller hands on what the kernel
// tells of that ([Files.Mapped]), and asks for what was mapped at the time of a sample
// ([Process.Regions]).
//
// Limits: it reads files of 64-bit little-endian amd64 and arm64 with section headers. It reads
// the table of Go 1.20 and later; programs of older Go have what their symbol table has. Of
// debugging information it reads names alone, so functions other than Go's have neither file
// nor line. The wrappers that the Go compiler makes are shown, which the runtime's own
// tracebacks leave out.
//
// The files belong to whoever runs the process: nothing in them is trusted. They are
// read in pieces as needed, never as a whole, and every size is capped.
//
// It knows nothing of samples, spans and profiles.
package symbols
