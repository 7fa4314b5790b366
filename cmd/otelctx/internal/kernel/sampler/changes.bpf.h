// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

// Reports at once when a process publishes, executes another program or ends. It reports
// only which process that is. The reader finds out more with its own permissions.

enum change_kind {
	CHANGED = 1,
	ENDED,
};

struct change {
	struct image image;
	__u32 kind;
	__u32 _pad;
};

const struct change *for_go_change __attribute__((unused));
const enum change_kind *for_go_change_kind __attribute__((unused));

// told holds the processes whose CHANGED has been reported, until the reader removes them. A
// process that changes all the time is reported once, and so fills neither this nor changes.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u32);
	__type(value, __u8);
} told SEC(".maps");

// Room for one change and the end of each process.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} changes SEC(".maps");

_Static_assert((1 << 18) >= MAX_PROCESSES * (sizeof(struct change) + 8), "each process has room");

static __always_inline bool is_watched(__u32 pid)
{
	return bpf_map_lookup_elem(&watched, &pid) != 0;
}

static __always_inline void tell(struct task_struct *task, __u32 pid, __u32 kind)
{
	struct change change = {.kind = kind};
	__u8 one = 1;

	if (kind == CHANGED && bpf_map_update_elem(&told, &pid, &one, BPF_NOEXIST))
		return; // Already reported, or too many: the poll finds the change.
	image_of(BPF_CORE_READ(task, group_leader), pid, &change.image);
	if (bpf_ringbuf_output(&changes, &change, sizeof(change), 0) && kind == CHANGED)
		bpf_map_delete_elem(&told, &pid);
}

static __always_inline int tell_exec(bool any)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	__u32 pid, tid;

	if (identify(task, &pid, &tid) && (any || is_watched(pid)))
		tell(task, pid, CHANGED);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int any_exec(void *ctx)
{
	return tell_exec(true);
}

SEC("tp_btf/sched_process_exec")
int watched_exec(void *ctx)
{
	return tell_exec(false);
}

// The process ends with its last thread.
SEC("tp_btf/sched_process_exit")
int watched_exit(void *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	__u32 pid, tid;

	if (BPF_CORE_READ(task, signal, live.counter) == 0 && identify(task, &pid, &tid) && is_watched(pid))
		tell(task, pid, ENDED);
	return 0;
}

#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0

// The kernel's arguments of a system call's entry tracepoint.
struct syscall_entry {
	__u64 common;
	__u64 number;
	__u64 args[6];
};

// A publisher names its mapping last, when the rest of the process
// context can be read. It tries even if the kernel cannot name mappings.
// Other code names mappings too: Go's runtime names its heap.
//
// It returns 1, because if a program returns 0, the kernel hides the system call from all perf
// events on its tracepoint, including those of other tools.
SEC("tracepoint/syscalls/sys_enter_prctl")
int publishes(struct syscall_entry *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	const char want[8] = {'O', 'T', 'E', 'L', '_', 'C', 'T', 'X'};
	__u64 name = 0;
	__u32 pid, tid;

	if (ctx->args[0] != PR_SET_VMA || ctx->args[1] != PR_SET_VMA_ANON_NAME)
		return 1;
	// A name that is not paged in, and so cannot be read here, may be this one.
	if (bpf_probe_read_user(&name, sizeof(name), (void *)ctx->args[4]) == 0 && name != *(const __u64 *)want)
		return 1;
	if (identify(task, &pid, &tid))
		tell(task, pid, CHANGED);
	return 1;
}
