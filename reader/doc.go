// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package reader reads the OpenTelemetry context that a process publishes for external profilers:
// its resource, its live spans and the span of each thread. It reads the process's memory from
// outside and needs no help from the process.
//
// A process of any language may publish a process context ([OTEP 4719]), which holds its
// OpenTelemetry resource. Go services that use otelctx also publish the span of each thread, and so
// does every process that writes thread slots:
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
// Nothing read from the process is trusted. Sizes are capped, pointers are followed only through
// process_vm_readv, and loops are bounded. A hostile process can cause an error, but no crash and
// no unbounded use of time or memory.
//
// Reading needs permission to ptrace-attach: the same user, if the kernel's Yama module allows
// that, or CAP_SYS_PTRACE. Process ids are those of the caller's PID namespace. Process contexts
// exist only on Linux: elsewhere every function returns an error that wraps
// [errors.ErrUnsupported].
//
// Everything in this package may be called concurrently. Returned values belong to the caller, who
// may keep and modify them.
//
// The package never writes to a process, and does not depend on the publishing packages.
//
// [OTEP 4719]:
// https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md
package reader
