// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// These programs attack a recorder in ways that Go programs do not. The arguments are the name of the
// attack, optionally preceded by "publish" and the data to publish. Each attack prints a line when it
// is ready, and then uses the CPU until its standard input ends.

#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define RING_HEADER 32
#define SLOT 32
#define SLOTS 65536

// ring is the memory of a ring. This program is linked at fixed addresses, so the ring has the same
// address in each process.
static unsigned char ring[RING_HEADER + SLOTS * SLOT] __attribute__((aligned(4096)));

static void __attribute__((noreturn)) fail(const char *what)
{
	perror(what);
	exit(1);
}

static void say(const char *line)
{
	puts(line);
	fflush(stdout);
}

// spin uses the CPU for about a millisecond in this function.
static void __attribute__((noinline)) spin(void)
{
	for (volatile int i = 0; i < 300000; i++)
		;
}

// told reports whether standard input has data or has ended.
static int told(void)
{
	struct pollfd in = {.fd = 0, .events = POLLIN};

	return poll(&in, 1, 0) > 0;
}

static size_t unhex(const char *hex, unsigned char **to)
{
	size_t size = strlen(hex) / 2;

	*to = malloc(size + 1);
	for (size_t i = 0; i < size; i++)
		sscanf(hex + 2 * i, "%2hhx", *to + i);
	return size;
}

// publish publishes a process context, and stores the start of a ring at the fixed address.
static void publish(const char *version, const char *payload_hex, const char *ring_hex)
{
	struct {
		char signature[8];
		uint32_t version, size;
		uint64_t published_at, payload;
	} *header;
	unsigned char *payload, *start;
	struct timespec now;
	size_t size = unhex(ring_hex, &start);
	int fd = memfd_create("OTEL_CTX", MFD_CLOEXEC);

	memcpy(ring, start, size);
	size = unhex(payload_hex, &payload);
	if (fd < 0 || ftruncate(fd, 4096))
		fail("memfd");
	header = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (header == MAP_FAILED)
		fail("mmap");
	close(fd);
	clock_gettime(CLOCK_BOOTTIME, &now);
	header->version = atoi(version);
	header->size = size;
	header->payload = (uintptr_t)payload;
	memcpy(header->signature, "OTEL_CTX", 8);
	header->published_at = now.tv_sec * 1000000000ULL + now.tv_nsec;
}

// become reads the path of another program from standard input and executes it.
static void become(void)
{
	char path[4096];

	say("published");
	while (!told())
		spin();
	if (!fgets(path, sizeof(path), stdin))
		exit(0);
	path[strcspn(path, "\n")] = 0;
	execl(path, path, "secret", NULL);
	fail(path);
}

// crowd starts processes that use the CPU once and then sleep forever.
static void crowd(int processes)
{
	for (int i = 0; i < processes; i++) {
		switch (fork()) {
		case -1:
			fail("fork");
		case 0:
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			spin();
			for (;;)
				pause();
		}
	}
	say("crowded");
	while (fgetc(stdin) != EOF)
		;
}

// slot publishes a span in the current thread's slot of a ring with the given capacity.
static void slot(int capacity)
{
	memset(ring + RING_HEADER + gettid() % capacity * SLOT, 'F', 24);
	say("shown");
	while (!told())
		spin();
}

// secret stores a secret at the address of the ring. The function's name identifies samples of this
// program.
static void __attribute__((noinline, noclone)) secret(void)
{
	for (size_t at = RING_HEADER; at < sizeof(ring); at += SLOT)
		memset(ring + at, 'S', 24);
	say("secret");
	while (!told())
		spin();
}

// map maps a file the given number of times, and runs the code at the given offset of each mapping in
// turn.
static void map(const char *path, int times, long offset)
{
	void **places = calloc(times, sizeof(*places));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	off_t size = lseek(fd, 0, SEEK_END);

	if (fd < 0)
		fail(path);
	for (int i = 0; i < times; i++) {
		places[i] = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
		if (places[i] == MAP_FAILED)
			fail("mmap");
	}
	say("mapped");
	for (int i = 0; !told(); i = (i + 1) % times)
		((void (*)(void))((char *)places[i] + offset))();
}

// jit generates code, with a different function in each page, and runs it. Before it runs the code, it waits
// for a line of input, so that the caller can write a perf map.
static void jit(int pages)
{
	//	mov $200000, %ecx; 1: dec %ecx; jnz 1b; ret
	static const unsigned char code[] = {0xb9, 0x40, 0x0d, 0x03, 0, 0xff, 0xc9, 0x75, 0xfc, 0xc3};
	char line[16];
	unsigned char *all = mmap(NULL, pages * 8192L, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED)
		fail("mmap");
	// Only every second page is used, so that each page is a separate mapping.
	for (int i = 0; i < pages; i++) {
		memcpy(all + i * 8192L, code, sizeof(code));
		if (mprotect(all + i * 8192L, 4096, PROT_READ | PROT_EXEC))
			fail("mprotect");
	}
	printf("%lx\n", (unsigned long)(uintptr_t)all);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(0);
	say("running");
	for (int i = 0; !told(); i = (i + 1) % pages)
		((void (*)(void))(all + i * 8192L))();
}

// frames uses the CPU with a chain of frame pointers. The return addresses are random and change each time;
// some are mapped and others are not.
static void frames(void)
{
	static struct frame {
		struct frame *next;
		uint64_t returns_to;
	} chain[127];
	uint64_t random = 88172645463325252ULL;

	say("frames");
	for (int round = 0;; round++) {
		if (round % 64 == 0 && told())
			return;
		for (int i = 0; i < 127; i++) {
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			chain[i].next = i < 126 ? &chain[i + 1] : NULL;
			chain[i].returns_to = random % 2 ? random >> 17 : (uintptr_t)&frames + random % 100000;
		}
#if defined(__x86_64__)
		uint64_t left = 20000;
		asm volatile("push %%rbp\n\tmov %1, %%rbp\n1:\tdec %0\n\tjnz 1b\n\tpop %%rbp"
			     : "+r"(left)
			     : "r"(&chain[0])
			     : "memory", "cc");
#else
		spin();
#endif
	}
}

// shake repeatedly replaces a few nonzero words with zero, random values or other words, and soon restores
// them.
static void shake(volatile uint64_t *words, size_t count)
{
	enum { changed = 8 };
	uint64_t random = 88172645463325252ULL;
	uint64_t *was = malloc(count * sizeof(*was));
	size_t *used = malloc(count * sizeof(*used));
	size_t last[changed] = {0}, n = 0;

	for (size_t i = 0; i < count; i++) {
		was[i] = words[i];
		if (was[i])
			used[n++] = i;
	}
	for (unsigned round = 0; round % 1024 || !told(); round++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		words[last[round % changed]] = was[last[round % changed]];
		size_t i = last[round % changed] = used[random % n];
		switch (random >> 40 & 3) {
		case 0:
			words[i] = random;
			break;
		case 1:
			words[i] = 0;
			break;
		case 2:
			words[i] = was[used[(random >> 20) % n]];
			break;
		case 3:
			words[i] += 8;
		}
	}
}

// place maps a file at an address, and returns its size.
static size_t place(const char *path, const char *address)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	off_t size = lseek(fd, 0, SEEK_END);
	void *at = (void *)strtoul(address, NULL, 0);

	if (fd < 0)
		fail(path);
	if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) != at)
		fail("mmap");
	return size;
}

// memory maps a file at an address, and keeps changing the memory if changes is set. otelctx searches only pages that are
// present, so all of them are read first.
static void memory(const char *path, const char *address, int changes)
{
	size_t size = place(path, address), i;
	volatile const char *at = (const char *)strtoul(address, NULL, 0);

	for (i = 0; i < size; i += 4096)
		(void)at[i];
	say("memory");
	if (changes)
		shake((uint64_t *)strtoul(address, NULL, 0), size / 8);
	while (fgetc(stdin) != EOF)
		;
}

// alternate executes this program again and again. Every second execution publishes nothing and maps the file
// other instead.
static void alternate(const char *path, const char *other, const char *address, char **argv)
{
	const char *secret = getenv("SECRET");
	struct timespec moment = {.tv_nsec = 1000000};

	place(secret ? other : path, address);
	if (!getenv("AGAIN"))
		say("memory");
	nanosleep(&moment, NULL);
	if (told())
		return;
	setenv("AGAIN", "1", 1);
	if (secret)
		unsetenv("SECRET");
	else
		setenv("SECRET", "1", 1);
	execv("/proc/self/exe", argv);
	fail("exec");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "become";
	static char **all;

	if (!all)
		all = argv;
	if (!strcmp(what, "publish") && argc >= 5) {
		if (!getenv("SECRET"))
			publish(argv[2], argv[3], argv[4]);
		return main(argc - 4, argv + 4);
	}
	if (!strcmp(what, "address"))
		printf("%lu\n", (unsigned long)(uintptr_t)ring);
	else if (!strcmp(what, "become"))
		become();
	else if (!strcmp(what, "secret"))
		secret();
	else if (!strcmp(what, "crowd") && argc == 3)
		crowd(atoi(argv[2]));
	else if (!strcmp(what, "slot") && argc == 3)
		slot(atoi(argv[2]));
	else if (!strcmp(what, "map") && argc == 5)
		map(argv[2], atoi(argv[3]), atol(argv[4]));
	else if (!strcmp(what, "jit") && argc == 3)
		jit(atoi(argv[2]));
	else if (!strcmp(what, "memory") && argc >= 4)
		memory(argv[2], argv[3], argc > 4);
	else if (!strcmp(what, "alternate") && argc == 5)
		alternate(argv[2], argv[3], argv[4], all);
	else if (!strcmp(what, "frames"))
		frames();
	else
		return 2;
	return 0;
}
