// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Publishes a process context as specified by OTEP 4719, then burns CPU.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

struct header {
	char signature[8];
	uint32_t version, payload_size;
	uint64_t published_at_ns, payload;
};

// A ProcessContext whose Resource has one attribute.
static const char message[] = "\x0a\x1d\x0a\x1b\x0a\x0cservice.name\x12\x0b\x0a\x09shop in C";

int main(void)
{
	struct timespec now;
	struct header *h;
	int fd = memfd_create("OTEL_CTX", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, 4096) || clock_gettime(CLOCK_BOOTTIME, &now))
		return 1;
	h = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (h == MAP_FAILED)
		return 1;
	close(fd);
	h->version = 2;
	h->payload_size = sizeof(message) - 1;
	h->payload = (uintptr_t)memcpy(h + 1, message, sizeof(message));
	h->published_at_ns = now.tv_sec * 1000000000ULL + now.tv_nsec;
	memcpy(h->signature, "OTEL_CTX", sizeof(h->signature));
	// If the kernel cannot name mappings, the name of the memfd identifies this one.
	prctl(0x53564d41 /* PR_SET_VMA */, 0 /* PR_SET_VMA_ANON_NAME */, h, 4096, "OTEL_CTX");
	puts("serving");
	fflush(stdout);
	for (volatile uint64_t n = 0;; n++)
		continue;
}
