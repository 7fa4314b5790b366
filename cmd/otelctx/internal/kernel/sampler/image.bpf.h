// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

// Which program a process runs, and which processes are watched: what the programs of this
// package have in common.

// How many processes can be watched.
#define MAX_PROCESSES 4096
#define MAX_NAMESPACES 33 // MAX_PID_NS_LEVEL and the first one

// image says which program a process runs. A process that gets the id of an ended one was
// started at another time. Each exec counts.
struct image {
	__u64 start; // of the process, CLOCK_BOOTTIME in nanoseconds
	__u64 execs;
	__u32 pid; // in the PID namespace of who watches
	__u32 _pad;
};

// watched has the number of the layout of each process that is watched, by its id in the
// PID namespace of who watches.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u32);
	__type(value, __u32);
} watched SEC(".maps");

// Set by the loader.
volatile const __u32 pid_namespace; // the number of the watcher's; 0 for the first one

static __always_inline struct upid upid_at(struct pid *pid, __u32 level)
{
	struct upid upid = {};
	void *at = (void *)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid);

	bpf_core_read(&upid.nr, sizeof(upid.nr), &((struct upid *)at)->nr);
	bpf_core_read(&upid.ns, sizeof(upid.ns), &((struct upid *)at)->ns);
	return upid;
}

// identify stores the ids of a thread in the watcher's PID namespace, and returns false
// if it has none there.
static __always_inline bool identify(struct task_struct *task, __u32 *process, __u32 *thread)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	__u32 last = BPF_CORE_READ(pid, level), level;

	for (level = 0; level < MAX_NAMESPACES && level <= last; level++) {
		struct upid upid = upid_at(pid, level);

		if (pid_namespace && BPF_CORE_READ(upid.ns, ns.inum) != pid_namespace)
			continue;
		*thread = upid.nr;
		*process = upid_at(BPF_CORE_READ(task, group_leader, thread_pid), level).nr;
		return *thread != 0; // 0 is the idle task
	}
	return false;
}

// image_of stores which program a process runs, by its first thread.
static __always_inline void image_of(struct task_struct *leader, __u32 pid, struct image *image)
{
	image->pid = pid;
	image->start = BPF_CORE_READ(leader, start_boottime);
	image->execs = BPF_CORE_READ(leader, self_exec_id);
}
