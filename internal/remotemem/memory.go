// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package remotemem

import "io"

// Memory is the memory of a process; an offset is an address in it. It is safe for concurrent use.
type Memory struct{ pid int }

var _ io.ReaderAt = Memory{}

// Of returns the memory of the process with id pid, which need not exist.
func Of(pid int) Memory { return Memory{pid: pid} }

// Part is a piece of a process's memory to be read: len(Data) bytes at Address. A part without
// bytes is not read.
type Part struct {
	Address uint64
	Data    []byte
}
