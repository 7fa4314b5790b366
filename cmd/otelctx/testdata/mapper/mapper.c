// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// A program that moves or replaces code while it is recorded. Its first argument says how. It prints
// "running" when it has started, and runs until its standard input ends.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int told(void)
{
	struct pollfd in = {.fd = 0, .events = POLLIN};

	return poll(&in, 1, 0) > 0;
}

static void __attribute__((noreturn)) fail(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(1);
}

// call runs code for the given number of milliseconds of the thread's CPU time.
static inline __attribute__((always_inline)) void call(void (*code)(void), int ms)
{
	struct timespec begun, now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
	do {
		code();
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	} while ((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < ms);
	asm volatile("" ::: "memory");
}

// These functions on the stack show which code is really running.
static void __attribute__((noinline)) in_first(void (*code)(void)) { call(code, 70); }
static void __attribute__((noinline)) in_second(void (*code)(void)) { call(code, 70); }

// reload loads one library after the other, at the same address.
static void reload(char **libraries)
{
	void *first = NULL;

	puts("running");
	fflush(stdout);
	for (int i = 0; !told(); i = 1 - i) {
		void *library = dlopen(libraries[i], RTLD_NOW);
		void *code = library ? dlsym(library, "work") : NULL;

		if (!code)
			fail(dlerror());
		if (first && code != first)
			fail("the libraries are not at the same address");
		first = code;
		(i ? in_second : in_first)((void (*)(void))code);
		dlclose(library);
	}
}

// compile generates the given number of pages of code, each in its own mapping, and writes a perf map in which
// the function in the first page has been replaced. It runs that function and one of a library.
static void compile(int pages, char *library)
{
	//	push %rbp; mov %rsp, %rbp; mov $200000, %ecx; 1: dec %ecx; jnz 1b; pop %rbp; ret
	static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0x40, 0x0d, 0x03, 0, 0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};
	void *loaded = dlopen(library, RTLD_NOW);
	void *work = loaded ? dlsym(loaded, "work") : NULL;
	unsigned char *all = mmap(NULL, pages * 8192L, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char path[64];
	FILE *map;

	if (all == MAP_FAILED || !work)
		fail("mmap, or dlopen");
	if ((void *)all > work)
		fail("the code is not below the library");
	for (int i = 0; i < pages; i++) {
		memcpy(all + i * 8192L, code, sizeof(code));
		if (mprotect(all + i * 8192L, 4096, PROT_READ | PROT_EXEC))
			fail("mprotect");
	}
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	map = fopen(path, "w");
	fprintf(map, "%lx 1000 Interpreted:handler\n", (unsigned long)(uintptr_t)all);
	for (int i = 1; i < 400000; i++)
		fprintf(map, "%lx 100 LazyCompile:other %d\n", (unsigned long)(uintptr_t)all + 8192L * pages + i * 256L, i);
	fprintf(map, "%lx 100 Optimized:handler\n", (unsigned long)(uintptr_t)all);
	fclose(map);
	puts("running");
	fflush(stdout);
	while (!told()) {
		in_first((void (*)(void))all);
		in_second((void (*)(void))work);
	}
	unlink(path);
}

// run runs a library's code.
static void run(char *library)
{
	void *loaded = dlopen(library, RTLD_NOW);
	void *work = loaded ? dlsym(loaded, "work") : NULL;

	if (!work)
		fail(dlerror());
	puts("running");
	fflush(stdout);
	while (!told())
		in_first((void (*)(void))work);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "reload"))
		reload(argv + 2);
	else if (argc == 4 && !strcmp(argv[1], "compile"))
		compile(atoi(argv[2]), argv[3]);
	else if (argc == 3 && !strcmp(argv[1], "run"))
		run(argv[2]);
	else
		return 2;
	return 0;
}
