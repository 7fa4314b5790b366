// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package childproc

import (
	"os"

	"golang.org/x/sys/unix"
)

// These rules are for system calls that otelctx makes. The Go runtime makes no calls that match their
// conditions, except prctl to name its own mappings, whose result does not matter.
var (
	// NoMemfd denies memfd_create, as strict seccomp profiles do.
	NoMemfd = Rule{Call: unix.SYS_MEMFD_CREATE, Errno: unix.EPERM}
	// NoNoexecSeal rejects MFD_NOEXEC_SEAL as invalid, as Linux before 6.3 does.
	NoNoexecSeal = Rule{Call: unix.SYS_MEMFD_CREATE, Errno: unix.EINVAL, Args: []Arg{
		{Index: 1, Mask: unix.MFD_NOEXEC_SEAL, Value: unix.MFD_NOEXEC_SEAL},
	}}
	// DeniedNoexecSeal denies MFD_NOEXEC_SEAL with EPERM, as a seccomp filter that permits only flags
	// it knows does.
	DeniedNoexecSeal = Rule{Call: unix.SYS_MEMFD_CREATE, Errno: unix.EPERM, Args: NoNoexecSeal.Args}
	// NoFtruncate denies ftruncate, which sets the size of a memfd.
	NoFtruncate = Rule{Call: unix.SYS_FTRUNCATE, Errno: unix.EPERM}
	// NoNaming rejects names for mappings, as a kernel without CONFIG_ANON_VMA_NAME does.
	NoNaming = Rule{Call: unix.SYS_PRCTL, Errno: unix.EINVAL, Args: []Arg{
		{Index: 0, Mask: ^uint32(0), Value: unix.PR_SET_VMA},
	}}
	// SeemingNaming makes prctl succeed without naming the mapping.
	SeemingNaming = Rule{Call: unix.SYS_PRCTL, Errno: 0, Args: []Arg{
		{Index: 0, Mask: ^uint32(0), Value: unix.PR_SET_VMA},
	}}
	// NoDontfork denies MADV_DONTFORK.
	NoDontfork = Rule{Call: unix.SYS_MADVISE, Errno: unix.EACCES, Args: []Arg{
		{Index: 2, Mask: ^uint32(0), Value: unix.MADV_DONTFORK},
	}}
	// NoBoottime denies CLOCK_BOOTTIME.
	NoBoottime = Rule{Call: unix.SYS_CLOCK_GETTIME, Errno: unix.EPERM, Args: []Arg{
		{Index: 0, Mask: ^uint32(0), Value: unix.CLOCK_BOOTTIME},
	}}
	// NoReadv denies process_vm_readv.
	NoReadv = Rule{Call: unix.SYS_PROCESS_VM_READV, Errno: unix.EPERM}
)

// NoMmap makes mmap fail with ENOMEM for mappings of size bytes, rounded up to pages, that are
// readable and writable from the start. It does not affect thread stacks of the same size.
func NoMmap(size int) Rule {
	page := os.Getpagesize()
	return Rule{Call: unix.SYS_MMAP, Errno: unix.ENOMEM, Args: []Arg{
		{Index: 1, Mask: ^uint32(0), Value: uint32((size + page - 1) / page * page)},
		{Index: 2, Mask: ^uint32(0), Value: unix.PROT_READ | unix.PROT_WRITE},
		{Index: 3, Mask: unix.MAP_STACK, Value: 0},
	}}
}
