// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package reader reads what a process publishes about itself, from outside and without
// the process's help. It is what a profiler imports.
//
// A process of any language may publish a process context ([OTEP 4719]), which has its
// OpenTelemetry resource. Go services that use otelctx publish the span of each thread
// too, and so does every process with slots for its threads:
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
// Nothing that is read is trusted. Sizes are capped, pointers are followed only by
// process_vm_readv, and loops are bounded. So a hostile process can cause an error, but
// no crash and no unbounded use of time or memory.
//
// Reading takes the permission to ptrace-attach: being the same user, if the kernel's
// Yama module allows that, or CAP_SYS_PTRACE. The process ids are those of the caller's
// PID namespace. Only Linux has process contexts:
// elsewhere every function returns an error that wraps [errors.ErrUnsupported].
//
// Everything in this package may be called concurrently. What it returns is the
// caller's own, to keep and to change.
//
// The package never writes to a process, and knows nothing of how this process publishes.
//
// [OTEP 4719]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md
package reader
