// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

// The program that a process runs, and the map of watched
// processes. The BPF programs of this package share both.

// The maximum number of watched processes.
#define MAX_PROCESSES 4096
#define MAX_NAMESPACES 33 // MAX_PID_NS_LEVEL and the initial one

// image identifies the program of a process. A process that reuses
// the id of an ended one has another start time. Each exec counts.
struct image {
	__u64 start; // of the process, CLOCK_BOOTTIME in nanoseconds
	__u64 execs;
	__u32 pid; // in the watcher's PID namespace
	__u32 _pad;
};

// watched maps each watched process, by its id in the
// watcher's PID namespace, to the index of its layout.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u32);
	__type(value, __u32);
} watched SEC(".maps");

// Set by the loader.
volatile const __u32 pid_namespace; // the inode number of the watcher's; 0 for the initial one

static __always_inline struct upid upid_at(struct pid *pid, __u32 level)
{
	struct upid upid = {};
	void *at = (void *)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid);

	bpf_core_read(&upid.nr, sizeof(upid.nr), &((struct upid *)at)->nr);
	bpf_core_read(&upid.ns, sizeof(upid.ns), &((struct upid *)at)->ns);
	return upid;
}

// identify stores the ids of a thread in the watcher's PID
// namespace. It returns false if the thread has none there.
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

// image_of stores the program of a process, given its first thread.
static __always_inline void image_of(struct task_struct *leader, __u32 pid, struct image *image)
{
	image->pid = pid;
	image->start = BPF_CORE_READ(leader, start_boottime);
	image->execs = BPF_CORE_READ(leader, self_exec_id);
}
