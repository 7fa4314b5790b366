//go:build ignore

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// creader PID prints which service a process is and which spans its threads are in, as
// docs/wire-format.md has it. Whatever it reads is checked before it is used.

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
	uint64_t owner_goid, local_root_span_id, m; uint32_t tid, sharing;
};
struct field { uint64_t value; const uint8_t *at, *end; }; // of protobuf: an integer, or bytes
static uint8_t payload[65536];
static struct field context = {0, payload, payload}; // the message in it
static int mem; // the memory of the process

static int read_at(uint64_t address, void *to, size_t size) {
	return pread(mem, to, size, (off_t)address) == (ssize_t)size;
}
static uint64_t number_at(uint64_t address, size_t size) {
	uint64_t number = 0;
	return read_at(address, &number, size) ? number : 0;
}
// Finds the first line with a text in a file of /proc/PID.
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
// Returns the last field of a number; with a key, the last of those KeyValues that has it.
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
// Prints the span in a thread's slot if its goroutine ran on the thread while it was there.
static void show_span(const char *thread, uint32_t tid) {
	struct ring ring;
	struct slot s;
	uint64_t address = integer("threadlocal.slots.address");
	if (!read_at(address, &ring, sizeof ring) || ring.magic != 0x4F54454C || ring.layout != 2 || !ring.capacity) return;
	address += ring.header_size + (uint64_t)(tid % ring.capacity) * ring.slot_size;
	uint64_t seq = number_at(address + 0x1C, 4), in_use = number_at(address + 0x18, 1);
	if (!read_at(address, &s, sizeof s)) return;
	uint64_t procid = number_at(s.m + integer("threadlocal.go.m_procid_offset"), 8);
	uint64_t curg = number_at(s.m + integer("threadlocal.go.m_curg_offset"), 8);
	uint64_t goid = number_at(curg + integer("threadlocal.go.g_goid_offset"), 8);
	in_use |= s.in_use | number_at(address + 0x18, 1);
	if (in_use || s.seq != seq || number_at(address + 0x1C, 4) != seq) return; // It is being written.
	if (s.span_id && (s.trace_id_high | s.trace_id_low) && s.tid == tid && procid == tid && goid && goid == s.owner_goid)
		printf("thread %s trace %016" PRIx64 "%016" PRIx64 " span %016" PRIx64 " goroutine %" PRIu64 "\n", thread,
		       s.trace_id_high, s.trace_id_low, s.span_id, goid);
}

int main(int argc, char **argv) {
	char path[300], line[4096];
	if (argc != 2) errx(2, "usage: creader PID");
	snprintf(path, sizeof path, "/proc/%d", atoi(argv[1]));
	if (chdir(path) || (mem = open("mem", O_RDONLY)) < 0) err(1, "%s", path);
	if (find_line("maps", ":OTEL_CTX", line)) context.end += read_payload(strtoull(line, NULL, 16));
	if (context.at == context.end) errx(1, "no process context to be read");
	struct field name = get(get(get(get(context, 1, NULL), 1, "service.name"), 2, NULL), 1, NULL);
	for (printf("service "); name.at < name.end; name.at++) putchar(*name.at < ' ' || *name.at > '~' ? '?' : *name.at);
	putchar('\n');
	DIR *tasks = opendir("task");
	for (struct dirent *e; tasks && (e = readdir(tasks));) {
		snprintf(path, sizeof path, "task/%s/status", e->d_name);
		// Slots go by the id that a thread has for itself, in the innermost PID namespace.
		if (e->d_name[0] != '.' && find_line(path, "NSpid:\t", line)) show_span(e->d_name, atoi(strrchr(line, '\t')));
	}
	return tasks ? closedir(tasks) : 0;
}
