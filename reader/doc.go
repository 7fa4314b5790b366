// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package reader reads the OpenTelemetry context that a process publishes for external profilers:
// its resource, its live spans and the active span of each thread. It reads the process's memory
// and needs no help from the process.
//
// A process in any language may publish a process context ([OTEP 4719]), which holds its
// OpenTelemetry resource. Go services that use otelctx, other processes that write thread slots,
// and processes that publish thread contexts (OTEP 4947) also publish the active span of each
// thread:
//
//	p, err := reader.Open(pid)
//	if err != nil {
//		return err
//	}
//	defer p.Close()
//	pc, err := p.ProcessContext(ctx)
//	...
//	threads, err := p.Threads(ctx)
//
// The package trusts nothing that it reads. It caps sizes, bounds loops, and follows pointers only
// through process_vm_readv. A hostile process can cause an error, but neither a crash nor unbounded
// use of time or memory.
//
// Reading requires permission to ptrace-attach. Processes of the same user have it if the kernel's
// Yama module allows that; otherwise the caller needs CAP_SYS_PTRACE. Process ids are those of the
// caller's PID namespace. Process contexts exist only on Linux: elsewhere [Open] and [Publishers]
// fail with an error that wraps [errors.ErrUnsupported].
//
// All functions and methods may be called concurrently. Unless stated otherwise, returned values
// belong to the caller, who may keep and modify them.
//
// The package never writes to the process. It stops threads only to read thread contexts; see
// [Process.ThreadContexts]. It does not depend on the packages that publish contexts.
//
// [OTEP 4719]:
// https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md
package reader
