// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ownmem reads memory of this process that may be unmapped, for example because another
// library owns it. A load from unmapped memory would raise a signal.
//
// It writes the memory to a pipe and reads it back: if the memory is unmapped, write returns EFAULT.
// Every sandbox allows these system calls. Some kill a process that calls process_vm_readv, and
// qemu-user does not implement it.
package ownmem
