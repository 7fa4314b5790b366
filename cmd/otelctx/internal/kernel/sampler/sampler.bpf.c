//go:build ignore

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

// Samples threads: their stacks and, if their process advertises its spans, their span.
//
// The program sample runs in the interrupt of a cpu-clock event, in the context of the interrupted
// thread. The programs allocation, freed and swept run when a thread reaches a probe in its own code.
// That thread cannot continue meanwhile, but other threads of the process can. So memory that they
// may write is checked for changes after it has been read.

#include <stdbool.h>

#include "kernel.bpf.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "image.bpf.h"
#include "changes.bpf.h"

// The kernel lets only programs licensed under the GPL read memory.
char _license[] SEC("license") = "GPL";

// The kernel records at most 127 frames by default (perf_event_max_stack).
#define MAX_FRAMES 127
#define STACK_SIZE (MAX_FRAMES * 8)
// Sizes are bounded by masks (BOUND), so each bound is a power of two minus 1.
#define STACK_MASK 1023
#define STACKS_MASK 2047 // of both stacks, one after the other
// The maximum size of a slot. Also the offset of fields
// that slots do not have: they are read as zeros.
#define SLOT_SIZE 1024
#define SLOT_MASK (SLOT_SIZE - 1)
#define NO_FIELD SLOT_SIZE
// Maximum sizes of the attributes of a slot and of a record (OTEP 4947).
#define MAX_ATTRIBUTES 1023
#define MAX_RECORD_ATTRIBUTES 612
#define DATA_SIZE (2 * (STACK_MASK + 1) + MAX_ATTRIBUTES + 1)

_Static_assert(STACK_SIZE <= STACK_MASK, "a stack fits behind its mask");
_Static_assert(2 * STACK_SIZE <= STACKS_MASK, "both stacks fit behind theirs");
_Static_assert(STACKS_MASK + MAX_ATTRIBUTES < DATA_SIZE, "attributes fit behind both stacks");
_Static_assert(MAX_RECORD_ATTRIBUTES <= MAX_ATTRIBUTES, "a record has no more attributes than a slot");
#define RECORD_SIZE 28
#define MAX_LABELS 64
// The bounds of the OpenTelemetry eBPF profiler for a goroutine's
// labels: their number, and the bytes of a key and of a value.
#define READ_LABELS 10
#define READ_KEY 15
#define READ_VALUE 47
#define SLOT_ATTEMPTS 3
// How many programs that can be preempted may run on a CPU at the same time.
#define PREEMPTIBLE_WORKS 4
// The positions of registers in pt_regs of amd64.
#define PT_REGS_BP 4
#define PT_REGS_BX 5
#define PT_REGS_AX 10
#define PT_REGS_CX 11
#define PT_REGS_IP 16
#define PT_REGS_SP 19
// The number of bytes read of a cell, and the number of ancestors in cells and records.
#define CELL_SIZE 128
#define ANCESTORS 3
// The goroutine table: the number of entries, how many share two cache lines,
// and the computation of check words. See internal/wire/goroutines.go.
#define ENTRIES (1 << 16)
#define ENTRY_SPREAD 8
#define ENTRY_SIZE 16
#define ENTRY_ADDRESS_BITS 45
#define ENTRY_FACTOR 0x9E3779B97F4A7C15ULL
#define ENTRY_ATTACHED 1

// The kind of a special record of the Go runtime is the byte at this offset. This kind refers to the sample of an
// allocation. Package allocations checks both in the program's code.
#define SPECIAL_KIND 16
#define SPECIAL_PROFILE 4

// What an event is about.
enum event_kind {
	CPU_TIME,
	ALLOCATION,
	FREED,
	SWEPT,
};

// The carriers, with the same numbers as in package reader.
enum carrier {
	NO_CARRIER,
	THREAD_SLOTS,
	GOROUTINE_TABLE,
	GOROUTINE_RECORD,
	LABELS, // not in package reader
};

// What a process has: the bits of layout.has.
enum feature {
	HAS_TLS_G = 1 << 0, // tls_g
	HAS_GOROUTINE = 1 << 1, // m_curg, g_goid
	HAS_G_M = 1 << 2,
	HAS_M_PROCID = 1 << 3,
	HAS_RECORD = 1 << 4, // g_labels, record_offset
	HAS_THREAD_SLOTS = 1 << 5,
	HAS_GOROUTINE_TABLE = 1 << 6, // entries
	// The owners of thread slots can be checked.
	HAS_OWNERS = 1 << 7,
	HAS_LABELS = 1 << 8, // m_curg, g_goid, g_labels
	HAS_SPANS = 1 << 9, // spans
	HAS_ANCESTORS = 1 << 10, // ancestors_offset
	HAS_NAMES = 1 << 11, // names_offset, name and endpoint of spans
	HAS_REF = 1 << 12, // ref_offset
};

// ring is the position and the layout of slots.
struct ring {
	__u64 slots; // the address of the first one
	__u32 capacity; // the number of slots, not 0
	__u32 slot_size;
	__u32 fields_size; // the size of the slot without the attributes
	__u16 trace_id_high, trace_id_low, span_id, in_use, trace_flags, attrs_size, seq;
	__u16 owner_goid, span_ref, m, tid, attrs;
};

// spans is the position and the layout of the cells of live spans.
struct spans {
	__u64 cells; // the address of the first one
	__u32 capacity; // the number of cells, not 0
	__u32 cell_size; // at least CELL_SIZE
	__u16 version, trace_id_high, trace_id_low, span_id, local_root_span_id, goid, ancestors, trace_flags, outside, tid;
	__u16 name, endpoint, _pad;
};

// thread is the program that a thread runs, and the CPU time of the thread.
struct thread {
	struct image image;
	__u64 used; // nanoseconds; 0 for a thread without user memory
};

// layout is what a process advertises. It is valid while the process runs the image.
struct layout {
	struct image image;
	__u32 _pad;
	__u32 has;
	__s64 tls_g;
	__u32 g_m, g_goid, g_labels, m_curg, m_procid, record_offset;
	__u32 ancestors_offset, names_offset, ref_offset, _pad2;
	__u64 entries; // the address of the first entry of the goroutine table
	struct ring threads;
	struct spans spans;
};

// Types exported to Go that no declaration uses.
const enum carrier *for_go_carrier __attribute__((unused));
const enum event_kind *for_go_event_kind __attribute__((unused));
const enum feature *for_go_feature __attribute__((unused));
const struct thread *for_go_thread __attribute__((unused));

// header is the part of an event that has a fixed size. Events other than samples have nothing else.
struct header {
	struct image image;
	__u64 time; // CLOCK_BOOTTIME in nanoseconds
	__u64 allocated; // the size of the allocation
	__u64 address; // of the object that is allocated or freed
	__u64 goid;
	__u64 trace_id[2], span_id, local_root_span_id; // in the order of their bytes
	__u32 tid, own_tid, cpu;
	__u16 user_size, kernel_size, attrs_size;
	__u16 names[2]; // the numbers of the span's name and of its endpoint
	__u8 carrier; // enum carrier
	__u8 proven;
	__u8 trace_flags;
	__u8 comm[16];
	__u8 kind; // enum event_kind
	__u8 _pad[6];
};

// event is a sample. data contains the user stack, the kernel stack and the attributes, one
// after the other, with the sizes in bytes from the header. If the carrier is LABELS, data
// contains an array of struct label instead of the attributes, and the header has no span.
struct event {
	struct header h;
	__u8 data[DATA_SIZE];
};

// label is a label as read, padded with zeros.
struct label {
	__u8 key[16]; // a power of two, as is the size of values
	__u8 value[64];
};

const struct label *for_go_label __attribute__((unused));

_Static_assert(READ_KEY < sizeof(((struct label *)0)->key), "a zero follows each key");
_Static_assert(READ_VALUE < sizeof(((struct label *)0)->value), "a zero follows each value");
_Static_assert(READ_LABELS * sizeof(struct label) <= MAX_ATTRIBUTES, "labels fit where attributes do");

// record is the record of OTEP 4947 without its attributes.
struct record {
	__u64 trace_id[2];
	__u64 span_id;
	__u8 valid;
	__u8 trace_flags;
	__u16 attrs_size;
};

// slot is the contents of a slot.
struct slot {
	__u64 trace_id_high, trace_id_low, span_id, owner_goid, ref, m;
	__u32 tid;
	__u16 attrs_size;
	__u8 trace_flags;
};

// work is the scratch memory of a program that runs on a CPU.
struct work {
	// Its key in works, and whether a program that can be preempted uses it.
	__u32 place, _pad;
	__u64 busy;
	struct event event;
	// The last slot read, and zeros from NO_FIELD on.
	__u8 slot[2 * SLOT_SIZE + 8];
	// The last cell read.
	__u8 cell[CELL_SIZE];
	// The thread's own slot.
	struct slot of_thread;
	// The record that follows the goroutine's labels.
	struct record record;
	// The index of the process's layout.
	__u32 layout;
	__u8 label[32];
	// The strings of the labels that are read; as many as a mask can bound.
	struct {
		__u64 key, key_size, value, value_size;
	} strings[16];
	__u64 fence;
};

// counts are the numbers of samples.
struct counts {
	__u64 taken;
	__u64 lost; // taken, but the reader was too late
	__u64 replaced; // not taken: the process runs another image than the watched one
	__u64 crowded; // not taken: too many programs on this CPU were preempted
	__u64 frees_lost; // freed objects that the reader does not learn about
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u32);
	__type(value, struct layout);
} layouts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1); // the loader raises it for allocation
	__type(key, __u32);
	__type(value, struct work);
} works SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20); // the loader chooses
} events SEC(".maps");

// It is always empty: see use_own_stack.
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} no_programs SEC(".maps");

// Set by the loader.
volatile const bool kernel_stacks;
volatile const bool only_labels; // labels are read instead of spans
volatile const __u32 wake_at; // the number of bytes in events at which the reader is woken

// Functions that are not static take numbers and look up their
// pointers here. The verifier checks each of them once, for all
// numbers. Checking each call would be the slowest part of the start.
static __always_inline struct work *this_work(__u32 place)
{
	return bpf_map_lookup_elem(&works, &place);
}

static __always_inline const struct layout *this_layout(struct work *w)
{
	return bpf_map_lookup_elem(&layouts, &w->layout);
}

// BOUND proves to the verifier that a size is at most mask, a power of 2 minus 1. Not
// every verifier learns that from a comparison, and fewer do from one of 32 bits.
#define BOUND(size, mask) asm volatile("%0 &= %1" : "+r"(size) : "i"(mask))

static __always_inline bool read_user(void *to, __u32 size, __u64 from)
{
	return bpf_probe_read_user(to, size, (void *)from) == 0;
}

static __always_inline bool valid_pointer(__u64 p)
{
	return p && p < (1ULL << 56) && p % 8 == 0;
}

// on_arm64 reports whether the kernel is one for arm64, and not for x86.
static __always_inline bool on_arm64(void)
{
	return bpf_core_field_exists(struct thread_struct, uw.tp_value);
}

// ordered is a load barrier.
static __always_inline void ordered(struct work *w)
{
	barrier(); // x86 itself orders loads
	if (on_arm64())
		__sync_fetch_and_add(&w->fence, 1);
}

// own_tid returns the id of the thread in its own, innermost PID namespace.
static __always_inline __u32 own_tid(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);

	return upid_at(pid, BPF_CORE_READ(pid, level)).nr;
}

#define FIELD(w, type, offset) (*(type *)&(w)->slot[(offset) & (2 * SLOT_SIZE - 1)])

// read_attributes reads the attributes of a slot whose fields have been read,
// if it has any. If they do not fit into the slot, it reads none of them.
static __always_inline bool read_attributes(struct work *w, const struct ring *r, __u64 at)
{
	__u64 size = FIELD(w, __u16, r->attrs_size), offset = r->attrs;

	if (!size || size > MAX_ATTRIBUTES || offset >= NO_FIELD || offset + size > r->slot_size)
		return true;
	BOUND(size, MAX_ATTRIBUTES);
	return read_user(&w->slot[offset & SLOT_MASK], size, at + offset);
}

// try_slot reads a slot once. It returns false if the slot was being written
// or cannot be read. It does not read memory that was never written: the
// page may not be present, and a page fault cannot be served here.
static __always_inline bool try_slot(struct work *w, const struct ring *r, __u64 at)
{
	__u32 seq = 0, seq_after = 0, size = r->fields_size;
	__u8 in_use, in_use_after;
	bool counts = r->seq != NO_FIELD;

	if (size > SLOT_SIZE)
		return false;
	// The count is read before the claim. A writer that has counted has
	// claimed. If its claim has already ended, it has written everything.
	if (counts && !read_user(&seq, sizeof(seq), at + r->seq))
		return false;
	ordered(w);
	if (!read_user(&in_use, sizeof(in_use), at + r->in_use) || in_use)
		return false;
	ordered(w);
	if (!read_user(w->slot, size, at) || !read_attributes(w, r, at))
		return false;
	ordered(w);
	if (!counts) {
		// Layout 1 does not count writes: compare two reads.
		__u64 high, low, span;

		if (!read_user(&high, 8, at + r->trace_id_high) || high != FIELD(w, __u64, r->trace_id_high) ||
		    !read_user(&low, 8, at + r->trace_id_low) || low != FIELD(w, __u64, r->trace_id_low) ||
		    !read_user(&span, 8, at + r->span_id) || span != FIELD(w, __u64, r->span_id))
			return false;
		ordered(w);
	}
	if (!read_user(&in_use_after, sizeof(in_use_after), at + r->in_use) || in_use_after)
		return false;
	ordered(w);
	if (counts && (!read_user(&seq_after, sizeof(seq_after), at + r->seq) || seq_after != seq ||
		       FIELD(w, __u32, r->seq) != seq))
		return false;
	return FIELD(w, __u8, r->in_use) == 0;
}

// read_slot reads the slot for a thread id, whoever owns
// it. It returns false if its content cannot be determined.
__noinline int read_slot(__u64 tid, __u32 place)
{
	struct work *w = this_work(place);
	const struct layout *l;
	const struct ring *r;
	struct slot *s;
	__u64 at;
	int i;

	if (!w)
		return false;
	l = this_layout(w);
	if (!l)
		return false;
	r = &l->threads;
	s = &w->of_thread;
	if (!r->capacity)
		return false;
	at = r->slots + tid % r->capacity * r->slot_size;
	for (i = 0; i < SLOT_ATTEMPTS; i++) {
		if (!try_slot(w, r, at))
			continue;
		s->trace_id_high = FIELD(w, __u64, r->trace_id_high);
		s->trace_id_low = FIELD(w, __u64, r->trace_id_low);
		s->span_id = FIELD(w, __u64, r->span_id);
		s->owner_goid = FIELD(w, __u64, r->owner_goid);
		s->ref = FIELD(w, __u64, r->span_ref);
		s->m = FIELD(w, __u64, r->m);
		s->tid = FIELD(w, __u32, r->tid);
		s->attrs_size = FIELD(w, __u16, r->attrs_size);
		s->trace_flags = FIELD(w, __u8, r->trace_flags);
		return true;
	}
	return false;
}

static __always_inline bool shows_span(const struct slot *s)
{
	return (s->trace_id_high || s->trace_id_low) && s->span_id;
}

// room returns the position of the attributes in an event's data.
static __always_inline __u8 *room(struct event *e)
{
	__u32 at = (__u32)e->h.user_size + e->h.kernel_size;

	return &e->data[at & STACKS_MASK];
}

// give_attributes stores the attributes of the last slot read.
static __always_inline void give_attributes(struct work *w, const struct ring *r, const struct slot *s)
{
	__u64 size = s->attrs_size, at = r->attrs;

	// Attributes that do not fit into the slot are dropped.
	if (!size || size > MAX_ATTRIBUTES || at >= NO_FIELD || at + size > r->slot_size)
		return;
	BOUND(size, MAX_ATTRIBUTES);
	if (bpf_probe_read_kernel(room(&w->event), size, &w->slot[at & SLOT_MASK]) == 0)
		w->event.h.attrs_size = size;
}

// give stores a span, whose ids are in big-endian order.
// It clears what another span has stored.
static __always_inline void give(struct event *e, __u64 trace0, __u64 trace1, __u64 span, enum carrier carrier)
{
	if (e->h.trace_id[0] != trace0 || e->h.trace_id[1] != trace1 || e->h.span_id != span)
		e->h.local_root_span_id = e->h.attrs_size = e->h.names[0] = e->h.names[1] = 0;
	e->h.trace_id[0] = trace0;
	e->h.trace_id[1] = trace1;
	e->h.span_id = span;
	e->h.carrier = carrier;
}

// give_nothing stores that the thread is not in a span.
static __always_inline void give_nothing(struct event *e)
{
	give(e, 0, 0, 0, NO_CARRIER);
	e->h.trace_flags = e->h.proven = 0;
}

// give_slot stores the span of the thread's slot.
static __always_inline void give_slot(struct work *w, const struct ring *r, const struct slot *s, bool proven)
{
	struct event *e = &w->event;

	give(e, __builtin_bswap64(s->trace_id_high), __builtin_bswap64(s->trace_id_low),
	     __builtin_bswap64(s->span_id), THREAD_SLOTS);
	e->h.trace_flags = s->trace_flags;
	e->h.proven = proven;
	give_attributes(w, r, s);
}

#define CELL(w, type, offset) (*(type *)&(w)->cell[(offset) & (CELL_SIZE - sizeof(type))])

enum liveness {
	GONE, // the cell is another span's, changed while it was read, or is unreadable
	OVER,
	LIVE,
};

// read_cell reads a consistent copy of the cell of a
// reference, and returns the state of the span.
__noinline int read_cell(__u64 ref, __u32 place)
{
	struct work *w = this_work(place);
	const struct layout *l;
	const struct spans *s;
	__u64 at, version = 0;

	if (!w)
		return GONE;
	l = this_layout(w);
	if (!l)
		return GONE;
	s = &l->spans;
	if (!ref || !s->capacity)
		return GONE;
	at = s->cells + (ref >> 1 & 0x7ffff) % s->capacity * s->cell_size;
	if (!read_user(w->cell, CELL_SIZE, at))
		return GONE;
	ordered(w);
	if (!read_user(&version, sizeof(version), at + s->version) || version != CELL(w, __u64, s->version) ||
	    (version & ~1ULL) != ref)
		return GONE;
	return version == ref ? LIVE : OVER;
}

// give_root stores the local root and the names from the
// last cell read, which must be the cell of the stored span.
static __always_inline void give_root(struct work *w, const struct spans *s)
{
	struct event *e = &w->event;

	e->h.local_root_span_id = __builtin_bswap64(CELL(w, __u64, s->local_root_span_id));
	e->h.names[0] = CELL(w, __u16, s->name);
	e->h.names[1] = CELL(w, __u16, s->endpoint);
}

// give_cell stores the span of the last cell read.
static __always_inline void give_cell(struct work *w, const struct spans *s, enum carrier carrier)
{
	struct event *e = &w->event;

	give(e, __builtin_bswap64(CELL(w, __u64, s->trace_id_high)), __builtin_bswap64(CELL(w, __u64, s->trace_id_low)),
	     __builtin_bswap64(CELL(w, __u64, s->span_id)), carrier);
	give_root(w, s);
	e->h.trace_flags = CELL(w, __u8, s->trace_flags);
	e->h.proven = true;
}

// give_ancestor stores the first live span among
// references. It returns false if there is none.
static __always_inline bool give_ancestor(struct work *w, const struct spans *s, const __u64 *refs, enum carrier carrier)
{
	int i;

	for (i = 0; i < ANCESTORS; i++) {
		if (read_cell(refs[i], w->place) == LIVE) {
			give_cell(w, s, carrier);
			return true;
		}
	}
	return false;
}

// give_ancestor_of_cell stores the span that a goroutine is in after the
// end of the span of the last cell read: the nearest live ancestor, or
// nothing if the goroutine started the span while it was in no ancestor.
static __always_inline void give_ancestor_of_cell(struct work *w, const struct spans *s, __u64 goid, enum carrier carrier)
{
	__u64 refs[ANCESTORS];
	int i;

	if (CELL(w, __u8, s->outside) && CELL(w, __u64, s->goid) == goid)
		return;
	for (i = 0; i < ANCESTORS; i++)
		refs[i] = CELL(w, __u64, s->ancestors + 8 * i);
	give_ancestor(w, s, refs, carrier);
}

// resolve_slot stores the span of the thread's slot. If it has
// ended, it stores the span that the slot's owner is in now.
static __always_inline void resolve_slot(struct work *w, const struct layout *l, const struct slot *slot, bool proven)
{
	const struct spans *s = &l->spans;
	enum liveness is;

	if (!(l->has & HAS_SPANS) || !slot->ref) {
		give_slot(w, &l->threads, slot, proven);
		return;
	}
	is = read_cell(slot->ref, w->place);
	// The goroutine that started the span may have continued on another thread.
	if (is == GONE || (slot->owner_goid && CELL(w, __u64, s->goid) == slot->owner_goid &&
			   CELL(w, __u32, s->tid) != slot->tid))
		return;
	if (is == LIVE) {
		give_slot(w, &l->threads, slot, proven);
		give_root(w, s);
	} else if (proven) {
		give_ancestor_of_cell(w, s, slot->owner_goid, THREAD_SLOTS);
	}
}

// The result of reading an entry of the goroutine table.
enum entry {
	UNKNOWN, // it is another goroutine's, or the cell has been reused for another span
	DECIDED, // the goroutine is in the span that is stored, or in none
};

// resolve_entry stores the span that the goroutine's entry refers to.
static __always_inline enum entry resolve_entry(struct work *w, const struct layout *l, __u64 goid, __u64 g)
{
	const __u64 groups = ENTRIES / ENTRY_SPREAD;
	__u64 owner, at = l->entries + (goid % groups * ENTRY_SPREAD + goid / groups % ENTRY_SPREAD) * ENTRY_SIZE;
	struct {
		__u64 position, check;
	} entry;

	if (!read_user(&entry, sizeof(entry), at))
		return UNKNOWN;
	owner = (g >> 3 & ((1ULL << ENTRY_ADDRESS_BITS) - 1)) | goid / ENTRIES << ENTRY_ADDRESS_BITS;
	if (entry.check != (~owner ^ entry.position * ENTRY_FACTOR))
		return UNKNOWN;
	entry.position &= ~(__u64)ENTRY_ATTACHED;
	switch (entry.position ? read_cell(entry.position, w->place) : OVER) {
	case LIVE:
		give_cell(w, &l->spans, GOROUTINE_TABLE);
		return DECIDED;
	case OVER:
		give_nothing(&w->event);
		if (entry.position)
			give_ancestor_of_cell(w, &l->spans, goid, GOROUTINE_TABLE);
		return DECIDED;
	default:
		give_nothing(&w->event);
		return UNKNOWN;
	}
}

static __always_inline __u64 thread_pointer(struct task_struct *task)
{
	if (on_arm64())
		return BPF_CORE_READ(task, thread.uw.tp_value);
	return BPF_CORE_READ(task, thread.fsbase);
}

// runs_on reports whether m is the thread's m. Without m.procid it accepts any m.
static __always_inline bool runs_on(const struct layout *l, __u64 m, __u32 tid)
{
	__u64 procid;

	if (!valid_pointer(m))
		return false;
	if (!(l->has & HAS_M_PROCID))
		return true;
	return read_user(&procid, sizeof(procid), m + l->m_procid) && procid == tid;
}

// m_of returns the m of a g that runs on the thread, or 0.
static __always_inline __u64 m_of(const struct layout *l, __u64 g, __u32 tid)
{
	__u64 m;

	if (!(l->has & HAS_G_M) || !valid_pointer(g) || !read_user(&m, sizeof(m), g + l->g_m) || !runs_on(l, m, tid))
		return 0;
	return m;
}

// user_register reads a register of the thread's user code on arm64, as
// saved at the entry into the kernel. It fails before Linux 5.15.
static __always_inline bool user_register(__u32 number, __u64 *value)
{
	struct pt_regs *regs;

	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return false;
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	return bpf_core_read(value, sizeof(*value), &regs->regs[number]) == 0;
}

// find_m returns the m of the thread, or 0. The g in the thread's TLS may
// belong to a system stack or a signal handler, but has the same m. Programs
// for arm64 without cgo keep g in a register only. Where that is unavailable,
// the thread's slot leads to the m, if the thread has ever published.
static __always_inline __u64 find_m(struct bpf_perf_event_data *ctx, struct task_struct *task, const struct layout *l,
				    const struct slot *s, __u32 tid)
{
	__u64 g, m = 0;

	if (l->has & HAS_TLS_G && read_user(&g, sizeof(g), thread_pointer(task) + l->tls_g))
		m = m_of(l, g, tid);
	// Go code keeps g in R28, and m_of rejects any other value. If
	// the kernel was interrupted, it has saved the R28 of user space.
	if (on_arm64() && !m && l->has & HAS_M_PROCID)
		m = m_of(l, ctx->regs[28], tid);
	if (on_arm64() && !m && l->has & HAS_M_PROCID && user_register(28, &g))
		m = m_of(l, g, tid);
	if (!m && l->has & HAS_M_PROCID && s->tid == tid && runs_on(l, s->m, tid))
		m = s->m;
	return m;
}

// find_goroutine returns the user goroutine that the thread runs, or
// for which it is in a system call, and its id; 0 if there is none.
static __always_inline __u64 find_goroutine(const struct layout *l, __u64 m, __u64 *goid)
{
	__u64 g, back;

	if (!m || !read_user(&g, sizeof(g), m + l->m_curg) || !valid_pointer(g) ||
	    !read_user(goid, sizeof(*goid), g + l->g_goid) || !*goid)
		return 0;
	if (l->has & HAS_G_M && (!read_user(&back, sizeof(back), g + l->g_m) || back != m))
		return 0;
	return g;
}

// digits returns the 8 lower-case hexadecimal digits of the bytes of v
// in memory order. Each nibble is moved into its own byte and '0' is
// added. From ten on, the distance between '9' and 'a' is added too.
static __always_inline __u64 digits(__u32 v)
{
	const __u64 ones = 0x0101010101010101ULL;
	__u64 d = __builtin_bswap32(v), letters;

	d = (d | d << 16) & 0x0000FFFF0000FFFFULL;
	d = (d | d << 8) & 0x00FF00FF00FF00FFULL;
	d = (d | d << 4) & (0x0F * ones);
	letters = (d + 6 * ones) >> 4 & ones;
	return __builtin_bswap64(d + '0' * ones + letters * ('a' - '9' - 1));
}

// labelled reports whether the values of the labels before the record contain the
// record's ids, as is the case for genuine records. Labels installed by other
// code are followed by arbitrary heap memory, which may look like a record.
__noinline int labelled(__u64 labels, __u32 place)
{
	struct work *w = this_work(place);
	const struct record *r;
	struct {
		__u64 list, len, n; // n is the capacity, which includes the labels of an ended span
	} slice;
	struct {
		__u64 at, size;
	} value;
	__u64 *text, trace0, trace1, trace2, trace3, span0, span1;
	bool has_trace = false, has_span = false;
	__u32 i;

	if (!w)
		return false;
	r = &w->record;
	text = (__u64 *)w->label;
	trace0 = digits(r->trace_id[0]);
	trace1 = digits(r->trace_id[0] >> 32);
	trace2 = digits(r->trace_id[1]);
	trace3 = digits(r->trace_id[1] >> 32);
	span0 = digits(r->span_id);
	span1 = digits(r->span_id >> 32);
	if (!read_user(&slice, sizeof(slice), labels) || !valid_pointer(slice.list))
		return false;
	for (i = 0; i < MAX_LABELS; i++) {
		if (i >= slice.n || !read_user(&value, sizeof(value), slice.list + 32 * i + 16))
			return false;
		if (value.size == 16 && read_user(text, 16, value.at))
			has_span |= text[0] == span0 && text[1] == span1;
		else if (value.size == 32 && read_user(text, 32, value.at))
			has_trace |= text[0] == trace0 && text[1] == trace1 && text[2] == trace2 && text[3] == trace3;
		if (has_trace && has_span)
			return true;
	}
	return false;
}

// give_record stores the span of the record that follows a goroutine's labels,
// if there is one. If the span has ended, it stores the nearest live ancestor.
// If only is true, it does so only for the span that is already stored.
static __always_inline void give_record(struct work *w, const struct layout *l, __u64 g, bool only)
{
	struct event *e = &w->event;
	struct record *r = &w->record;
	__u64 labels, at, size, ref;
	struct {
		__u64 ancestors[ANCESTORS], outsider;
	} lineage;
	__u8 valid;

	if (!read_user(&labels, sizeof(labels), g + l->g_labels) || !valid_pointer(labels))
		return;
	at = labels + l->record_offset;
	if (!read_user(r, RECORD_SIZE, at) || r->valid > 1 || (!r->trace_id[0] && !r->trace_id[1]) || !r->span_id ||
	    r->attrs_size > MAX_RECORD_ATTRIBUTES)
		return;
	if (only && (!r->valid || e->h.trace_id[0] != r->trace_id[0] || e->h.trace_id[1] != r->trace_id[1] ||
		     e->h.span_id != r->span_id))
		return;
	if (!labelled(labels, w->place))
		return;
	ordered(w);
	// The span may have ended meanwhile, on another thread. Nothing else changes.
	if (!read_user(&valid, sizeof(valid), at + __builtin_offsetof(struct record, valid)))
		return;
	if (valid != 1) {
		if (!only && l->has & HAS_SPANS && l->has & HAS_ANCESTORS &&
		    read_user(&lineage, sizeof(lineage), labels + l->ancestors_offset) && lineage.outsider != e->h.goid)
			give_ancestor(w, &l->spans, lineage.ancestors, GOROUTINE_RECORD);
		return;
	}
	give(e, r->trace_id[0], r->trace_id[1], r->span_id, GOROUTINE_RECORD);
	e->h.trace_flags = r->trace_flags;
	e->h.proven = true;
	// A slot with the same span has already led to the cell. The span may be ending.
	if (!only && l->has & HAS_SPANS && l->has & HAS_REF && read_user(&ref, sizeof(ref), labels + l->ref_offset) && ref) {
		// The cell is unreadable, has just changed, or is another span's. The process may have published
		// again since the layout was read, so that the numbers of names and attributes mean others.
		if (read_cell(ref, w->place) == GONE)
			return;
		give_root(w, &l->spans);
	}
	// The names in a cell are at least as new.
	if (l->has & HAS_NAMES && !e->h.names[0] && !e->h.names[1])
		read_user(e->h.names, sizeof(e->h.names), labels + l->names_offset);
	size = r->attrs_size; // at most MAX_RECORD_ATTRIBUTES: checked above
	BOUND(size, MAX_ATTRIBUTES);
	if (size)
		e->h.attrs_size = read_user(room(e), size, at + RECORD_SIZE) ? size : 0;
}

// give_labels stores the labels of the goroutine that the thread runs. Package
// sampler extracts the span. It reads them like the OpenTelemetry eBPF profiler
// does (support/ebpf/go_labels.ebpf.c), so that both find the same: the first
// labels of the m's current goroutine, and no labels if any of them cannot be read.
static __always_inline void give_labels(struct bpf_perf_event_data *ctx, struct task_struct *task,
					const struct layout *l, const struct slot *s, struct work *w)
{
	struct event *e = &w->event;
	struct {
		__u64 list, size, room;
	} slice;
	__u64 m, g, labels, n, size;
	struct label *to = (struct label *)room(e);
	__u32 i;

	if (!(l->has & HAS_LABELS))
		return;
	m = find_m(ctx, task, l, s, e->h.own_tid);
	if (!m || !read_user(&g, sizeof(g), m + l->m_curg) || !read_user(&e->h.goid, sizeof(e->h.goid), g + l->g_goid) ||
	    !read_user(&labels, sizeof(labels), g + l->g_labels) || !read_user(&slice, sizeof(slice), labels))
		return;
	n = slice.size < READ_LABELS ? slice.size : READ_LABELS;
	size = n * sizeof(w->strings[0]);
	BOUND(size, sizeof(w->strings) - 1);
	if (!read_user(w->strings, size, slice.list))
		return;
	for (i = 0; i < READ_LABELS && i < n; i++, to++) {
		__u64 key = w->strings[i].key_size, value = w->strings[i].value_size;

		key = key < READ_KEY ? key : READ_KEY;
		BOUND(key, sizeof(to->key) - 1);
		value = value < READ_VALUE ? value : READ_VALUE;
		BOUND(value, sizeof(to->value) - 1);
		__builtin_memset(to, 0, sizeof(*to));
		if (!read_user(to->key, key, w->strings[i].key) || !read_user(to->value, value, w->strings[i].value))
			return;
	}
	e->h.attrs_size = n * sizeof(*to);
	e->h.carrier = LABELS;
}

// find_span stores the span that the thread is in. The goroutine's own
// entry takes precedence, because labels are inherited and users replace
// them. Next is the record that follows its labels, then the thread's slot,
// if the running goroutine wrote it or its writer is unknown. They are read
// from the lowest to the highest precedence. If entry and record have the
// same span, the record is stored last because it has the attributes.
static __always_inline void find_span(struct bpf_perf_event_data *ctx, struct task_struct *task, const struct layout *l,
				      struct work *w)
{
	struct event *e = &w->event;
	struct slot *of_thread = &w->of_thread;
	__u32 tid = e->h.own_tid;
	bool only = false;
	__u64 m, g;

	__builtin_memset(of_thread, 0, sizeof(*of_thread));
	if (only_labels) {
		give_labels(ctx, task, l, of_thread, w);
		return;
	}
	if (l->has & HAS_THREAD_SLOTS && !read_slot(tid, w->place))
		__builtin_memset(of_thread, 0, sizeof(*of_thread));
	if (!(l->has & HAS_GOROUTINE)) {
		if (shows_span(of_thread) && (of_thread->tid == tid || l->threads.tid == NO_FIELD))
			resolve_slot(w, l, of_thread, false);
		return;
	}
	m = find_m(ctx, task, l, of_thread, tid);
	g = find_goroutine(l, m, &e->h.goid);
	if (!g) {
		e->h.goid = 0;
		return;
	}
	if (l->has & HAS_OWNERS && shows_span(of_thread) && of_thread->tid == tid && of_thread->m == m &&
	    of_thread->owner_goid == e->h.goid)
		resolve_slot(w, l, of_thread, true);
	if (l->has & HAS_GOROUTINE_TABLE && l->has & HAS_SPANS && resolve_entry(w, l, e->h.goid, g) == DECIDED) {
		if (e->h.carrier == NO_CARRIER)
			return; // The goroutine is in no span.
		only = true;
	}
	if (l->has & HAS_RECORD)
		give_record(w, l, g, only);
}

// stack stores a stack at an offset of an event's data and returns its size in bytes.
static __always_inline __u16 stack(void *ctx, struct event *e, __u32 at, __u64 flags)
{
	long size = bpf_get_stack(ctx, &e->data[at & STACK_MASK], STACK_SIZE, flags);

	return size > 0 ? size & STACK_MASK : 0;
}

// wakeup returns the flag for an output that wakes the reader only if there is much to read.
static __always_inline __u64 wakeup(void)
{
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= wake_at ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

// submit outputs the event. It returns false if the event is lost.
static __always_inline bool submit(struct event *e)
{
	__u64 size = sizeof(e->h) + e->h.user_size + e->h.kernel_size + e->h.attrs_size;
	__u64 wake = wakeup();

	barrier_var(size);
	return size <= sizeof(*e) && bpf_ringbuf_output(&events, e, size, wake) == 0;
}

// begin returns the scratch memory for a sample of the current thread with the image and the ids filled in, or NULL if
// the thread's process is not watched. The first scratch memory belongs to the program that cannot be preempted, but
// may itself interrupt the others. Those claim one of the rest.
static __always_inline struct work *begin(struct task_struct *task, enum event_kind kind, struct counts **counts)
{
	struct image image = {};
	struct layout *l;
	struct counts *c;
	struct work *w;
	__u32 zero = 0, pid = 0, tid = 0, place = 0, *number;

	if (!identify(task, &pid, &tid))
		return 0;
	number = bpf_map_lookup_elem(&watched, &pid);
	if (!number)
		return 0;
	l = bpf_map_lookup_elem(&layouts, number);
	c = bpf_map_lookup_elem(&counted, &zero);
	if (!l || !c)
		return 0;
	// A layout is valid only for the image that advertised it. Another image
	// may even be a program that the watcher is not permitted to read. The
	// layout's index may also just have been given to another process.
	image_of(BPF_CORE_READ(task, group_leader), pid, &image);
	if (l->image.start != image.start || l->image.execs != image.execs || l->image.pid != pid) {
		__sync_fetch_and_add(&c->replaced, 1);
		return 0;
	}
	if (kind == CPU_TIME) {
		w = this_work(place);
	} else {
		for (place = 1; place <= PREEMPTIBLE_WORKS; place++) {
			w = this_work(place);
			if (!w || !__sync_val_compare_and_swap(&w->busy, 0, 1))
				break;
		}
		if (place > PREEMPTIBLE_WORKS) {
			__sync_fetch_and_add(&c->crowded, 1);
			return 0;
		}
	}
	if (!w)
		return 0;
	w->place = place;
	w->layout = *number;
	__builtin_memset(&w->event.h, 0, sizeof(w->event.h));
	w->event.h.image = image;
	w->event.h.tid = tid;
	w->event.h.time = bpf_ktime_get_boot_ns();
	w->event.h.cpu = bpf_get_smp_processor_id();
	w->event.h.kind = kind;
	w->event.h.own_tid = own_tid(task);
	bpf_get_current_comm(w->event.h.comm, sizeof(w->event.h.comm));
	__sync_fetch_and_add(&c->taken, 1);
	*counts = c;
	return w;
}

// finish adds the span to a sample whose stacks are stored, and outputs it.
static __always_inline void finish(struct bpf_perf_event_data *ctx, struct task_struct *task, struct work *w,
				   struct counts *c)
{
	const struct layout *l = this_layout(w);

	if (l)
		find_span(ctx, task, l, w);
	if (!submit(&w->event))
		__sync_fetch_and_add(&c->lost, 1);
}

SEC("perf_event")
int sample(struct bpf_perf_event_data *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct counts *c;
	struct work *w = begin(task, CPU_TIME, &c);
	struct event *e;

	if (!w)
		return 0;
	e = &w->event;
	e->h.user_size = stack(ctx, e, 0, BPF_F_USER_STACK);
	if (kernel_stacks)
		e->h.kernel_size = stack(ctx, e, e->h.user_size, 0);
	finish(ctx, task, w, c);
	return 0;
}

// use_own_stack keeps a program at a probe on the stack of its thread. Linux 6.13 and later give programs of the type
// kprobe, which these are, a private stack for each CPU instead. But a program at a probe in a process can be preempted. A
// second one on the same CPU would then overwrite the local variables of the first, which would use whatever it finds there
// as kernel pointers.
// Programs that contain a tail call have no private stack. This call does nothing.
static __always_inline void use_own_stack(void *ctx)
{
	bpf_tail_call(ctx, &no_programs, 0);
}

// walk stores the user stack of a thread that is about to push its frame pointer, by following frame
// pointers, and returns its size in bytes. bpf_get_stack assembles stacks in memory of the CPU that
// another program could overwrite if this one is preempted.
static __always_inline __u16 walk(struct event *e, __u64 pc, __u64 sp, __u64 fp)
{
	__u64 *to = (__u64 *)e->data;
	struct {
		__u64 caller, back;
	} frame;
	__u32 n;

	to[0] = pc;
	if (!read_user(&to[1], sizeof(to[1]), sp))
		return sizeof(to[0]);
	for (n = 2; n < MAX_FRAMES; n++) {
		if (!valid_pointer(fp) || !read_user(&frame, sizeof(frame), fp))
			break;
		to[n] = frame.back;
		if (frame.caller <= fp) // Callers are at higher addresses. The outermost frame has 0.
			fp = 0;
		else
			fp = frame.caller;
	}
	return n * sizeof(to[0]);
}

// Runs in runtime.mProf_Malloc(mp *m, p unsafe.Pointer, size uintptr) of a Go program for amd64, at the push of
// the frame pointer, before which the function changes neither the stack nor its arguments. Go passes them in
// RAX, RBX and RCX.
SEC("uprobe")
int allocation(struct bpf_perf_event_data *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct counts *c;
	struct work *w;
	__u64 size = ctx->regs[PT_REGS_CX], pc = ctx->regs[PT_REGS_IP], sp = ctx->regs[PT_REGS_SP];
	__u64 fp = ctx->regs[PT_REGS_BP], address = ctx->regs[PT_REGS_BX];

	use_own_stack(ctx);
	w = begin(task, ALLOCATION, &c);
	if (!w)
		return 0;
	w->event.h.allocated = size ? size : 1;
	w->event.h.address = address;
	w->event.h.user_size = walk(&w->event, pc, sp, fp);
	finish(ctx, task, w, c);
	barrier();
	*(volatile __u64 *)&w->busy = 0;
	return 0;
}

// note outputs an event of a watched process that is no sample. It returns false if the event is lost.
static __always_inline bool note(enum event_kind kind, __u64 address)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct header h = {};
	struct layout *l;
	__u32 pid = 0, tid = 0, *number;

	if (!identify(task, &pid, &tid))
		return true;
	number = bpf_map_lookup_elem(&watched, &pid);
	if (!number)
		return true;
	l = bpf_map_lookup_elem(&layouts, number);
	if (!l)
		return true;
	image_of(BPF_CORE_READ(task, group_leader), pid, &h.image);
	if (l->image.start != h.image.start || l->image.execs != h.image.execs || l->image.pid != pid)
		return true; // See begin.
	h.kind = kind;
	h.address = address;
	h.tid = tid;
	h.time = bpf_ktime_get_boot_ns();
	h.cpu = bpf_get_smp_processor_id();
	return bpf_ringbuf_output(&events, &h, sizeof(h), wakeup()) == 0;
}

// Runs in runtime.freeSpecial(s *special, p unsafe.Pointer, size uintptr), at the push of the frame pointer. The sweep
// calls it for each special record of an object that it frees. If the object was sampled, one of them refers to the
// sample, and p is the address that mProf_Malloc was called with.
SEC("uprobe")
int freed(struct bpf_perf_event_data *ctx)
{
	__u64 special = ctx->regs[PT_REGS_AX], address = ctx->regs[PT_REGS_BX];
	struct counts *c;
	__u32 zero = 0;
	__u8 kind;

	use_own_stack(ctx);
	c = bpf_map_lookup_elem(&counted, &zero);
	if (!c)
		return 0;
	// The record is in memory that the thread has just read. If it cannot be read, the object counts as freed without
	// notice, though it may have another kind of record.
	if (!read_user(&kind, sizeof(kind), special + SPECIAL_KIND)) {
		__sync_fetch_and_add(&c->frees_lost, 1);
		return 0;
	}
	if (kind == SPECIAL_PROFILE && !note(FREED, address))
		__sync_fetch_and_add(&c->frees_lost, 1);
	return 0;
}

// Runs in runtime.nextMarkBitArenaEpoch(), at the push of the frame pointer: once for each collection, when the world
// is stopped, the sweep of the previous collection is complete, and the marking has not begun.
SEC("uprobe")
int swept(struct bpf_perf_event_data *ctx)
{
	use_own_stack(ctx);
	note(SWEPT, 0);
	return 0;
}

// Lists all threads: writes a struct thread for each.
SEC("iter/task")
int threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread thread = {};
	__u32 pid, tid;

	if (task && identify(task, &pid, &tid)) {
		image_of(BPF_CORE_READ(task, group_leader), pid, &thread.image);
		// Kernel threads and ended threads publish nothing.
		if (BPF_CORE_READ(task, mm))
			thread.used = BPF_CORE_READ(task, se.sum_exec_runtime);
		bpf_seq_write(ctx->meta->seq, &thread, sizeof(thread));
	}
	return 0;
}
