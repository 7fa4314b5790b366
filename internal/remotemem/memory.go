// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package remotemem reads the memory of a process, including the caller's own, without its help and
// without trusting its pointers.
//
// The package does not interpret the memory. Of otelctx it imports only internal/procfs, which decides
// whose process ids are meant.
package remotemem

import "io"

// Memory is the memory of a process. Offsets are addresses in that process. It is safe for
// concurrent use.
type Memory struct{ pid int }

var _ io.ReaderAt = Memory{}

// Of returns the memory of the process with id pid in the file system of procfs.Host. If there is no such process, reading
// fails.
func Of(pid int) Memory { return Memory{pid: pid} }

// Part is a part of a process's memory to be read: len(Data) bytes, starting at Address. If Data is
// empty, nothing is read.
type Part struct {
	Address uint64
	Data    []byte
}

// Reader reads parts of a process's memory, as [Memory.ReadParts] does.
type Reader interface {
	ReadParts(parts []Part) (int, error)
}
