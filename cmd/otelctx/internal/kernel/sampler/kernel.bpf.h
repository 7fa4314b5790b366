// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

// The kernel types that the programs of this package use. The structs
// contain only the fields that are read. The loader fills in their
// offsets from the running kernel's BTF (preserve_access_index).
//
// One object serves both architectures. Code for one of them is behind on_arm64,
// whose value the loader fills in, too. The verifier removes the other code.

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_RINGBUF = 27,

	BPF_NOEXIST = 1,

	BPF_F_USER_STACK = 1 << 8,

	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RB_AVAIL_DATA = 0,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct thread_struct {
	unsigned long fsbase; // x86
	struct {
		unsigned long tp_value;
	} uw; // arm64
};

struct pt_regs {
	__u64 regs[31]; // arm64
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct mm_struct;

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct task_struct {
	struct sched_entity se;
	struct mm_struct *mm;
	struct signal_struct *signal;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	__u64 start_boottime;
	__u64 self_exec_id;
	struct thread_struct thread;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

// A kernel helper whose availability a program checks.
enum bpf_func_id {
	BPF_FUNC_task_pt_regs = 175,
};

#pragma clang attribute pop

// The argument of a perf_event program on arm64: the interrupted registers. They
// are part of the kernel's interface to user space, so the layout is stable.
struct bpf_perf_event_data {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
