//go:build ignore

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// creader PID prints which service a process is and which spans its threads are in, as
// docs/wire-format.md has it. Whatever it reads is checked before it is used.

#define _GNU_SOURCE
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

struct bytes { const uint8_t *at, *end; };
struct header { char signature[8]; uint32_t version, size; uint64_t published_at, payload; };
struct ring { uint32_t magic, layout, capacity, slot_size, header_size, index; };
struct slot {
	uint64_t trace_id_high, trace_id_low, span_id;
	uint8_t in_use, trace_flags; uint16_t attrs_size; uint32_t seq;
	uint64_t owner_goid, local_root_span_id, m; uint32_t tid, sharing;
};
static pid_t pid;
static uint8_t payload[65536];
static struct ring ring;
static uint64_t first_slot, m_procid, m_curg, g_goid; // an address and three offsets

static int read_at(uint64_t address, void *to, size_t size) {
	struct iovec local = {to, size}, remote = {(void *)(uintptr_t)address, size};
	return process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)size;
}

static uint64_t varint(struct bytes *b) {
	uint64_t v = 0;
	for (int shift = 0; b->at < b->end && shift < 64; shift += 7) {
		v |= (uint64_t)(*b->at & 127) << shift;
		if (*b->at++ < 128) return v;
	}
	b->at = b->end; // It is cut off: nothing follows.
	return 0;
}
// Takes the next field off a message and returns its number, or 0 if there is none.
static uint64_t next(struct bytes *b, uint64_t *v, struct bytes *sub) {
	uint64_t key = varint(b), type = key & 7, size = type == 1 ? 8 : type == 5 ? 4 : 0;
	*v = type == 0 ? varint(b) : 0;
	if (type == 2) size = varint(b);
	if (type == 3 || type == 4 || type > 5 || size > (uint64_t)(b->end - b->at)) return 0;
	*sub = (struct bytes){b->at, b->at + size};
	b->at += size;
	return key >> 3;
}
// Finds the last field of a number, or of those that are KeyValues the AnyValue of a key.
static struct bytes find(struct bytes b, uint64_t number, const char *key, uint64_t *v) {
	struct bytes found = {b.end, b.end}, sub;
	for (uint64_t n, x; (n = next(&b, &x, &sub));) {
		if (n != number) continue;
		struct bytes name = key ? find(sub, 1, NULL, v) : sub;
		if (key && ((size_t)(name.end - name.at) != strlen(key) || memcmp(name.at, key, strlen(key)))) continue;
		found = key ? find(sub, 2, NULL, v) : sub;
		*v = x;
	}
	return found;
}
static uint64_t integer(struct bytes message, const char *key) {
	uint64_t v = 0;
	find(find(message, 2, key, &v), 3, NULL, &v);
	return v;
}

// Reads the process context at an address and returns its payload's size, or 0.
static size_t read_context(uint64_t address) {
	for (int i = 0; i < 10; i++, usleep(500)) {
		struct header h, again;
		if (!read_at(address, &h, sizeof h) || memcmp(h.signature, "OTEL_CTX", 8) || h.version != 2) return 0;
		if (h.published_at && h.size <= sizeof payload && read_at(h.payload, payload, h.size) &&
		    read_at(address, &again, sizeof again) && !memcmp(&h, &again, sizeof h)) return h.size;
	}
	return 0;
}
static size_t find_context(void) {
	char path[64], *line = NULL;
	size_t room = 0, size = 0;
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	FILE *maps = fopen(path, "r");
	while (!size && maps && getline(&line, &room, maps) > 0) {
		uint64_t start; // of /memfd:OTEL_CTX, [anon_shmem:OTEL_CTX] or [anon:OTEL_CTX]
		if (strstr(line, ":OTEL_CTX") && sscanf(line, "%" SCNx64, &start) == 1) size = read_context(start);
	}
	free(line);
	if (maps) fclose(maps);
	return size;
}

static int find_slots(struct bytes message) {
	uint64_t address = integer(message, "threadlocal.slots.address");
	m_procid = integer(message, "threadlocal.go.m_procid_offset");
	m_curg = integer(message, "threadlocal.go.m_curg_offset");
	g_goid = integer(message, "threadlocal.go.g_goid_offset");
	if (!m_procid || !m_curg || !g_goid || !read_at(address, &ring, sizeof ring)) return 0;
	first_slot = address + ring.header_size;
	return ring.magic == 0x4F54454C && ring.layout == 2 && ring.index == 0 && ring.slot_size >= sizeof(struct slot) &&
	       ring.capacity && !(ring.capacity & (ring.capacity - 1));
}
// Reads a thread's slot, and returns whether it shows a span of the goroutine that the
// thread ran at a moment when it was shown.
static int find_span(uint32_t tid, struct slot *s) {
	uint64_t slot = first_slot + (uint64_t)(tid & (ring.capacity - 1)) * ring.slot_size, procid, curg, goid;
	for (int i = 0; i < 8; i++) {
		uint32_t seq, seq_after;
		uint8_t in_use, in_use_after;
		if (!read_at(slot + 0x1C, &seq, 4) || !read_at(slot + 0x18, &in_use, 1) || !read_at(slot, s, sizeof *s)) return 0;
		int owned = s->tid == tid && s->span_id && (s->trace_id_high | s->trace_id_low) &&
			    read_at(s->m + m_procid, &procid, 8) && procid == tid && read_at(s->m + m_curg, &curg, 8) &&
			    read_at(curg + g_goid, &goid, 8) && goid == s->owner_goid;
		if (!read_at(slot + 0x18, &in_use_after, 1) || !read_at(slot + 0x1C, &seq_after, 4)) return 0;
		if (!in_use && !s->in_use && !in_use_after && seq == s->seq && seq == seq_after) return owned;
	}
	return 0;
}
// Returns the id by which a thread knows itself: that of the innermost PID namespace.
static uint32_t own_id(int tid) {
	char path[64], line[256], *last;
	uint32_t own = tid;
	snprintf(path, sizeof path, "/proc/%d/task/%d/status", pid, tid);
	FILE *status = fopen(path, "r");
	while (status && fgets(line, sizeof line, status))
		if (!strncmp(line, "NSpid:", 6) && (last = strrchr(line, '\t'))) own = strtoul(last, NULL, 10);
	if (status) fclose(status);
	return own;
}

int main(int argc, char **argv) {
	char path[64];
	struct slot s;
	uint64_t v;
	if (argc != 2 || (pid = atoi(argv[1])) <= 0) return fprintf(stderr, "usage: creader PID\n"), 2;
	struct bytes message = {payload, payload + find_context()};
	if (message.at == message.end) return fprintf(stderr, "creader: no process context to be read\n"), 1;
	struct bytes name = find(find(find(message, 1, NULL, &v), 1, "service.name", &v), 1, NULL, &v);
	for (printf("service "); name.at < name.end; name.at++) putchar(*name.at < ' ' || *name.at > '~' ? '?' : *name.at);
	putchar('\n');
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *tasks = find_slots(message) ? opendir(path) : NULL;
	for (struct dirent *e; tasks && (e = readdir(tasks));)
		if (atoi(e->d_name) && find_span(own_id(atoi(e->d_name)), &s))
			printf("thread %s trace %016" PRIx64 "%016" PRIx64 " span %016" PRIx64 " goroutine %" PRIu64 "\n", e->d_name,
			       s.trace_id_high, s.trace_id_low, s.span_id, s.owner_goid);
	return tasks ? closedir(tasks) : 0;
}
