//go:build ignore

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// creader PID prints the service of a process, the active spans of its threads and its live spans. It
// follows docs/wire-format.md, and trusts nothing that it reads before it has checked it.

#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct header { char signature[8]; uint32_t version, size; uint64_t published_at, payload; };
struct ring { uint32_t magic, layout, capacity, slot_size, header_size, index; };
struct slot {
	uint64_t trace_id_high, trace_id_low, span_id; uint8_t in_use, trace_flags; uint16_t attrs_size; uint32_t seq;
	uint64_t owner_goid, span_ref, m; uint32_t tid, reserved;
};
struct table { uint32_t magic, layout, capacity, entry_size, header_size, used; };
struct cell {
	uint64_t version, trace_id_high, trace_id_low, span_id, local_root_span_id, goid, ancestors[3];
	uint8_t trace_flags, dispatched, reserved1[6]; uint64_t start_unix_ns, g; uint32_t tid, reserved2[7];
};
struct field { uint64_t value; const uint8_t *at, *end; }; // a protobuf field: an integer, or bytes
static uint8_t payload[65536];
static struct field context = {0, payload, payload}; // the message in payload
static int mem; // the memory of the process

static int read_at(uint64_t address, void *buffer, size_t size) {
	return pread(mem, buffer, size, (off_t)address) == (ssize_t)size;
}
static uint64_t number_at(uint64_t address, size_t size) {
	uint64_t number = 0;
	return read_at(address, &number, size) ? number : 0;
}
// Finds the first line of a file in /proc/PID that contains a text. Returns 0 if there is none.
static int find_line(const char *path, const char *text, char line[4096]) {
	int found = 0;
	FILE *file = fopen(path, "r");
	while (file && !found && fgets(line, 4096, file)) found = strstr(line, text) != NULL;
	if (file) fclose(file);
	return found;
}

static uint64_t varint(struct field *message) {
	uint64_t value = 0;
	for (int shift = 0, more = 1; more && shift < 64 && message->at < message->end; shift += 7) {
		value |= (uint64_t)(*message->at & 127) << shift;
		more = *message->at++ & 128;
	}
	return value;
}
// Returns the last field of a message that has the given number. If key is not NULL, the field must
// also be a KeyValue with this key.
static struct field get(struct field message, uint64_t number, const char *key) {
	struct field found = {0};
	while (message.at < message.end) {
		uint64_t tag = varint(&message), type = tag & 7, value = type == 0 || type == 2 ? varint(&message) : 0;
		uint64_t size = type == 2 ? value : type == 1 ? 8 : type == 5 ? 4 : 0;
		if (size > (uint64_t)(message.end - message.at)) break;
		struct field f = {value, message.at, message.at + size}, name = key ? get(f, 1, NULL) : f;
		size_t length = name.end - name.at;
		if (tag >> 3 == number && (!key || (length == strlen(key) && !memcmp(name.at, key, length)))) found = f;
		message.at = f.end;
	}
	return found;
}
static uint64_t integer(const char *key) {
	return get(get(get(context, 2, key), 2, NULL), 3, NULL).value;
}

// Reads the payload of the process context at an address and returns its size, or 0.
static size_t read_payload(uint64_t address) {
	for (int i = 0; i < 10; i++, usleep(500)) {
		struct header h, again;
		if (!read_at(address, &h, sizeof h) || memcmp(h.signature, "OTEL_CTX", 8) || h.version != 2) return 0;
		if (h.published_at && h.size <= sizeof payload && read_at(h.payload, payload, h.size) &&
		    read_at(address, &again, sizeof again) && !memcmp(&h, &again, sizeof h)) return h.size;
	}
	return 0;
}
// Returns the Go runtime's m of a thread, or 0. Its address comes from the thread's slot, which may be
// torn or stale, so the m is only accepted if it holds the thread's id.
static uint64_t find_m(uint32_t tid) {
	struct ring ring;
	struct slot s;
	uint64_t address = integer("threadlocal.slots.address");
	if (!read_at(address, &ring, sizeof ring) || ring.magic != 0x4F54454C || ring.layout != 2 || !ring.capacity) return 0;
	if (!read_at(address + ring.header_size + tid % ring.capacity * ring.slot_size, &s, sizeof s)) return 0;
	return number_at(s.m + integer("threadlocal.go.m_procid_offset"), 8) == tid ? s.m : 0;
}
// Reads the reference to a goroutine's last published span from the goroutine table. Returns 0 if the
// entry belongs to another goroutine.
static int read_entry(uint64_t goid, uint64_t g, uint64_t *ref) {
	struct table t;
	uint64_t address = integer("threadlocal.goroutines.address"), entry[2];
	if (!read_at(address, &t, sizeof t) || t.magic != 0x4F544754 || t.layout != 1 || t.capacity != 65536) return 0;
	address += t.header_size + (goid % 8192 * 8 + goid / 8192 % 8) * t.entry_size;
	if (!read_at(address, entry, sizeof entry)) return 0;
	*ref = entry[0] & ~1ULL;
	return entry[1] == (~((g >> 3 & ((1ULL << 45) - 1)) | goid >> 16 << 45) ^ entry[0] * 0x9E3779B97F4A7C15);
}
// Reads the header of the span table and returns the address of its cells, or 0.
static uint64_t read_table(struct table *t) {
	uint64_t address = integer("threadlocal.spans.address");
	if (!read_at(address, t, sizeof *t) || t->magic != 0x4F545350 || t->layout != 1 || !t->capacity) return 0;
	return t->entry_size < sizeof(struct cell) ? 0 : address + t->header_size;
}
// Reads the cell of the span that ref refers to. The span may be LIVE or ENDED, or the cell may have
// been REUSED for another span.
static enum { REUSED, ENDED, LIVE } read_cell(uint64_t ref, struct cell *c) {
	struct table t;
	uint64_t address = read_table(&t);
	if (!address || !ref) return REUSED;
	address += (ref >> 1 & 0x7FFFF) % t.capacity * t.entry_size;
	if (!read_at(address, c, sizeof *c) || number_at(address, 8) != c->version) return REUSED;
	return c->version == ref ? LIVE : c->version == (ref | 1) ? ENDED : REUSED;
}
static void print_span(const struct cell *c, uint64_t goid) {
	printf("trace %016" PRIx64 "%016" PRIx64 " span %016" PRIx64 " goroutine %" PRIu64 "\n", c->trace_id_high, c->trace_id_low,
	       c->span_id, goid);
}
// Prints the active span of the goroutine on a thread, according to the goroutine's entry.
static void print_thread(const char *thread, uint32_t tid) {
	uint64_t m = find_m(tid), curg = number_at(m + integer("threadlocal.go.m_curg_offset"), 8), ref;
	uint64_t goid = number_at(curg + integer("threadlocal.go.g_goid_offset"), 8);
	if (!m || !goid || !read_entry(goid, curg, &ref)) return;
	struct cell c;
	int state = read_cell(ref, &c);
	if (state == ENDED && !(c.dispatched && c.goid == goid)) { // The nearest live ancestor is active.
		struct cell ended = c;
		for (int i = 0; i < 3 && state != LIVE; i++) state = read_cell(ended.ancestors[i], &c);
	}
	if (state != LIVE || number_at(m + integer("threadlocal.go.m_curg_offset"), 8) != curg) return;
	printf("thread %s ", thread);
	print_span(&c, goid);
}
// Prints the live spans. A cell is consistent if its version is the same before and after the read.
static void list_spans(void) {
	struct table t;
	struct cell before, c;
	uint64_t address = read_table(&t);
	for (uint32_t i = 0; address && i < t.used && i < t.capacity; i++, address += t.entry_size) {
		if (!read_at(address, &before, sizeof before) || !before.version || before.version & 1) continue;
		if (!read_at(address, &c, sizeof c) || number_at(address, 8) != before.version) continue;
		printf("live ");
		print_span(&c, c.goid);
	}
}

int main(int argc, char **argv) {
	char path[300], line[4096];
	if (argc != 2) errx(2, "usage: creader PID");
	snprintf(path, sizeof path, "/proc/%d", atoi(argv[1]));
	if (chdir(path) || (mem = open("mem", O_RDONLY)) < 0) err(1, "%s", path);
	if (find_line("maps", ":OTEL_CTX", line)) context.end += read_payload(strtoull(line, NULL, 16));
	struct field name = get(get(get(get(context, 1, NULL), 1, "service.name"), 2, NULL), 1, NULL);
	for (printf("service "); name.at < name.end; name.at++) putchar(*name.at < ' ' || *name.at > '~' ? '?' : *name.at);
	putchar('\n');
	// If the process context belongs to another library, spans are advertised in a separate mapping.
	if (!get(context, 2, "threadlocal.schema_version").at && find_line("maps", ":OTELCTX_THREADLOCAL", line))
		context.end = context.at + read_payload(strtoull(line, NULL, 16));
	if (context.at == context.end) errx(1, "no readable process context");
	DIR *tasks = opendir("task");
	for (struct dirent *e; tasks && (e = readdir(tasks));) {
		snprintf(path, sizeof path, "task/%s/status", e->d_name);
		// Slots are indexed by the thread's id in its innermost PID namespace.
		if (e->d_name[0] != '.' && find_line(path, "NSpid:\t", line)) print_thread(e->d_name, atoi(strrchr(line, '\t')));
	}
	list_spans();
	return tasks ? closedir(tasks) : 0;
}
