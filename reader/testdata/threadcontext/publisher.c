// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// A publisher of OTEP 4719 and 4947 in C, which shares no code with otelctx. It is written from the texts of the OTEPs.
//
// Usage: publisher THREADS [LIBRARY]
//
// Each thread publishes its own record, whose ids and attribute follow from the thread's number, and then waits. With LIBRARY the
// thread-local variable is in that library, loaded by dlopen; otherwise it is in the program. The program prints a line "TID NUMBER" for
// each thread and "ready", and ends when its standard input does. A line "update" on it publishes the context again; "detach" detaches
// all records; "fork" starts two children that wait: a copy of the process, and one that shares its memory; "signals" prints how often threads
// have handled SIGRTMIN; "exec" executes the program again, with the same arguments.
//
// The environment variable BREAK names one rule to break, for tests of checkers: see BROKEN below. With CHURN, threads replace their
// records forever by those of the threads 0 to 99. With VFORK, thread 0 waits for a child of vfork. With NO_ROBUST_LIST, the kernel does not
// know the threads' lists of robust mutexes, as if the C library were not glibc. With FIRST, the first thread publishes a record too, with the number
// THREADS. With FORGE, the program maps 200 libraries that define the
// variable and have large relocation tables without a relocation for it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

#ifndef WITHOUT_VARIABLE
#ifdef OTHER_FILE
extern _Thread_local void *otel_thread_ctx_v1;
#elif defined NOT_THREAD_LOCAL
__attribute__((visibility("default"))) void *otel_thread_ctx_v1;
#else
__attribute__((visibility("default"))) _Thread_local void *otel_thread_ctx_v1;
#endif
#endif

struct header {
	char signature[8];
	uint32_t version, payload_size;
	_Atomic uint64_t published_at;
	uint64_t payload;
};

static struct header *header;
static uint8_t payload[2][1 << 18];
static int updates;
static const char *broken = "";
#define BROKEN(what) (!strcmp(broken, what))

// A minimal protobuf encoder.
static size_t field(uint8_t *out, int number, const uint8_t *data, size_t size) {
	size_t n = 0;
	out[n++] = (uint8_t)(number << 3 | 2);
	size_t rest = size;
	for (; rest > 127; rest >>= 7)
		out[n++] = (uint8_t)(rest & 127) | 128;
	out[n++] = (uint8_t)rest;
	memcpy(out + n, data, size);
	return size + n;
}

static size_t int_value(uint8_t *out, int number) {
	out[0] = 3 << 3;
	out[1] = (uint8_t)number;
	return 2;
}

static size_t string_value(uint8_t *out, const char *text) {
	return field(out, 1, (const uint8_t *)text, strlen(text));
}

static size_t key_value(uint8_t *out, int number, const char *key, const uint8_t *value, size_t size) {
	static uint8_t kv[1 << 17];
	size_t n = field(kv, 1, (const uint8_t *)key, strlen(key));
	n += field(kv + n, 2, value, size);
	return field(out, number, kv, n);
}

static size_t encode(uint8_t *out) {
	static uint8_t value[1 << 17], resource[1 << 17], list[1 << 16], text[256], large[70000];
	size_t n = 0, l = 0;
	if (BROKEN("service.name is a number"))
		n += key_value(resource + n, 1, "service.name", value, int_value(value, 7));
	else if (!BROKEN("no service.name"))
		n += key_value(resource + n, 1, "service.name", value, string_value(value, "c-publisher"));
	if (BROKEN("a resource key twice"))
		n += key_value(resource + n, 1, "service.name", value, string_value(value, "again"));
	if (BROKEN("an empty key"))
		n += key_value(resource + n, 1, "", value, string_value(value, "nothing"));
	if (BROKEN("a large payload")) {
		memset(large, 'x', sizeof large - 1);
		n += key_value(resource + n, 1, "large", value, string_value(value, (char *)large));
	}
	n = BROKEN("no resource") ? 0 : field(out, 1, resource, n);
	size_t schema = BROKEN("the schema is a number") ? int_value(value, 1) : string_value(value, "tlsdesc_v1_dev");
	n += key_value(out + n, 2, "threadlocal.schema_version", value, schema);
	if (BROKEN("an attribute key twice"))
		n += key_value(out + n, 2, "threadlocal.schema_version", value, schema);
	const char *first = "worker", *second = "update";
	if (BROKEN("the key map is reordered") && updates % 2)
		first = "update", second = "worker";
	l += field(list + l, 1, text, BROKEN("a key is a number") ? int_value(text, 1) : string_value(text, first));
	if (!BROKEN("the key map shrinks") || updates % 2)
		l += field(list + l, 1, text, string_value(text, second));
	for (int i = 0; BROKEN("the key map is too large") && i < 255; i++)
		l += field(list + l, 1, text, string_value(text, "more"));
	size_t keys = BROKEN("the key map is a string") ? string_value(value, "worker") : field(value, 5, list, l);
	n += key_value(out + n, 2, "threadlocal.attribute_key_map", value, keys);
	if (BROKEN("the payload is no message"))
		memset(out, 0xff, n);
	return BROKEN("the payload is cut") ? n - 3 : n;
}

static uint64_t boottime(void) {
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void map(void) {
	int fd = (int)syscall(SYS_memfd_create, "OTEL_CTX", BROKEN("the descriptor survives exec") ? 2U : 1U | 2U | MFD_NOEXEC_SEAL);
	if (fd < 0)
		fd = (int)syscall(SYS_memfd_create, "OTEL_CTX", 1U | 2U);
	if (fd < 0 || ftruncate(fd, 4096))
		exit(2);
	int protection = PROT_READ | PROT_WRITE | (BROKEN("the mapping is executable") ? PROT_EXEC : 0);
	header = mmap(0, 4096, protection, BROKEN("the mapping is shared") ? MAP_SHARED : MAP_PRIVATE, fd, 0);
	if (!BROKEN("the descriptor survives exec") && !BROKEN("the descriptor stays open"))
		close(fd);
	if (header == MAP_FAILED)
		exit(3);
	if (!BROKEN("children inherit the mapping") && madvise(header, 4096, MADV_DONTFORK))
		exit(3);
}

static void wait_ms(long ms) {
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
	nanosleep(&t, 0);
}

static void publish(void) {
	uint8_t *to = payload[updates++ % 2];
	size_t size = encode(to);
	uint64_t before = 0;
	struct header *old = header;
	int update = header != 0;
	if (BROKEN("the mapping is read-only") && update)
		mprotect(header, 4096, PROT_READ | PROT_WRITE);
	if (!update || BROKEN("an update moves the header") || (BROKEN("two contexts") && updates == 2)) {
		map();
		memcpy(header->signature, BROKEN("another signature") ? "OTEL_CTY" : BROKEN("no signature") ? "\0\0\0\0\0\0\0" : "OTEL_CTX", 8);
		header->version = BROKEN("version 3") ? 3 : BROKEN("version 0") ? 0 : 2;
		if (BROKEN("the timestamp comes first")) {
			atomic_store(&header->published_at, boottime());
			wait_ms(1500);
		}
	} else if (BROKEN("an update keeps the timestamp") || BROKEN("an update does not zero the timestamp")) {
		before = header->published_at;
	} else {
		before = atomic_exchange(&header->published_at, 0);
		atomic_thread_fence(memory_order_seq_cst);
	}
	header->payload = BROKEN("no payload") ? 0 : BROKEN("the payload is not mapped") ? 4096 : (uintptr_t)to;
	header->payload_size = BROKEN("the payload is endless") ? 1U << 30 : (uint32_t)size;
	if (update && BROKEN("an update does not zero the timestamp"))
		wait_ms(20);
	if (BROKEN("the timestamp stays zero") && update)
		return;
	atomic_thread_fence(memory_order_seq_cst);
	uint64_t now = boottime();
	if (BROKEN("wall clock"))
		now = (uint64_t)time(0) * 1000000000u + (uint64_t)updates;
	if (BROKEN("an hour ahead"))
		now += 3600000000000u;
	if (now <= before)
		now = before + 1;
	if (update && BROKEN("an update keeps the timestamp"))
		now = before;
	if (update && BROKEN("an update goes back in time"))
		now = before - 1000;
	atomic_store(&header->published_at, now);
	if (!update || !BROKEN("an update does not name the mapping"))
		prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, header, 4096, "OTEL_CTX");
	if (update && BROKEN("an update moves the header"))
		munmap(old, 4096);
	if (BROKEN("the mapping is read-only"))
		mprotect(header, 4096, PROT_READ);
	if (update && BROKEN("the payload changes in place")) {
		wait_ms(20);
		to[size - 1] ^= 1;
		wait_ms(20);
	}
}

// forge maps one file 200 times, so that only one table of relocations takes up memory.
static void forge(void) {
	static struct {
		Elf64_Ehdr header;
		Elf64_Phdr programs[3];
		Elf64_Dyn dynamic[6];
		Elf64_Sym symbols[2];
		uint32_t hash[6];
		char names[32];
	} f = {.names = "\0otel_thread_ctx_v1"};
#define AT(field) ((uint64_t)((char *)&f.field - (char *)&f))
	const uint64_t table = 4096, size = 64 << 20;
	memcpy(f.header.e_ident, ELFMAG "\2\1\1", 7);
#ifdef __aarch64__
	f.header.e_machine = EM_AARCH64;
#else
	f.header.e_machine = EM_X86_64;
#endif
	f.header.e_phoff = AT(programs), f.header.e_phentsize = sizeof f.programs[0], f.header.e_phnum = 3;
	f.programs[0] = (Elf64_Phdr){.p_type = PT_LOAD, .p_memsz = table + size};
	f.programs[1] = (Elf64_Phdr){.p_type = PT_TLS, .p_memsz = 64};
	f.programs[2] = (Elf64_Phdr){.p_type = PT_DYNAMIC, .p_vaddr = AT(dynamic), .p_memsz = sizeof f.dynamic};
	f.dynamic[0].d_tag = DT_HASH, f.dynamic[0].d_un.d_ptr = AT(hash);
	f.dynamic[1].d_tag = DT_SYMTAB, f.dynamic[1].d_un.d_ptr = AT(symbols);
	f.dynamic[2].d_tag = DT_STRTAB, f.dynamic[2].d_un.d_ptr = AT(names);
	f.dynamic[3].d_tag = DT_RELA, f.dynamic[3].d_un.d_ptr = table;
	f.dynamic[4].d_tag = DT_RELASZ, f.dynamic[4].d_un.d_val = size;
	f.symbols[1] = (Elf64_Sym){.st_name = 1, .st_info = STT_TLS, .st_shndx = 1, .st_value = 8};
	f.hash[0] = 1, f.hash[1] = 2, f.hash[2] = 1; // one bucket, which begins with symbol 1
	int fd = (int)syscall(SYS_memfd_create, "forged", 1U);
	if (fd < 0 || ftruncate(fd, (off_t)(table + size)) || write(fd, &f, sizeof f) != sizeof f)
		exit(5);
	for (int i = 0; i < 200; i++)
		if (mmap(0, table + size, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, fd, 0) == MAP_FAILED)
			exit(6);
	close(fd);
}

struct record {
	uint8_t trace_id[16], span_id[8], valid, flags;
	uint16_t size;
	uint8_t data[1000];
};

static void **(*variable)(void);

#ifndef WITHOUT_VARIABLE
static void **own(void) { return &otel_thread_ctx_v1; }
#endif

static pthread_barrier_t started, detached;
static int detach;

static void fill(struct record *r, unsigned number) {
	memset(r->trace_id, (int)number + 1, sizeof r->trace_id);
	memset(r->span_id, (int)number + 101, sizeof r->span_id);
	r->flags = 1;
	r->size = 4;
	r->data[0] = 0; // the key
	r->data[1] = 2; // bytes
	r->data[2] = (uint8_t)('0' + number / 10 % 10);
	r->data[3] = (uint8_t)('0' + number % 10);
}

// churn replaces the thread's record forever, in place or by another one, in short bursts. Some records are freed as soon as they
// are replaced.
static void churn(struct record *records, unsigned number) {
	struct record *r = records, *freed = 0;
	for (;; number = (number + 1) % 100) {
		if (number % 8 < 4) {
			r->valid = 0;
			atomic_signal_fence(memory_order_seq_cst);
			fill(r, number);
			atomic_signal_fence(memory_order_seq_cst);
			r->valid = 1;
		} else if (number % 8 > 4) {
			freed = mmap(0, sizeof *freed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			fill(freed, number);
			freed->valid = 1;
			atomic_signal_fence(memory_order_seq_cst);
			*variable() = freed;
		} else {
			r = r == records ? records + 1 : records;
			fill(r, number);
			r->valid = 1;
			atomic_signal_fence(memory_order_seq_cst);
			*variable() = r;
		}
		// Hold the record for about as long as a read takes, so that reads and updates overlap.
		for (volatile int i = 0; i < 3000; i++)
			;
		if (freed) {
			*variable() = r;
			atomic_signal_fence(memory_order_seq_cst);
			munmap(freed, sizeof *freed);
			freed = 0;
		}
		if (number % 16 == 0) {
			struct timespec t = {.tv_nsec = 20000};
			nanosleep(&t, 0);
		}
	}
}

static atomic_uint signals;

static void handle(int signal) {
	(void)signal;
	atomic_fetch_add(&signals, 1);
}

static void forget_robust_list(void) {
	if (getenv("NO_ROBUST_LIST"))
		syscall(SYS_set_robust_list, 0, 24);
}

static void *work(void *arg) {
	unsigned number = (unsigned)(uintptr_t)arg;
	forget_robust_list();
	struct record *r = calloc(2, sizeof *r);
	if (BROKEN("the record is at an odd address"))
		r = (struct record *)((char *)r + 1);
	fill(r, number);
	if (BROKEN("no trace id") || BROKEN("flags without ids"))
		memset(r->trace_id, 0, sizeof r->trace_id);
	if (BROKEN("no span id") || BROKEN("flags without ids"))
		memset(r->span_id, 0, sizeof r->span_id);
	if (BROKEN("an attribute is cut"))
		r->size = 3;
	if (BROKEN("half an attribute"))
		r->size = 5;
	if (BROKEN("an unknown key"))
		r->data[0] = 200;
	if (BROKEN("a value is not UTF-8"))
		r->data[2] = 0xff;
	if (BROKEN("a long record"))
		for (r->size = 0; r->size < 768; r->size += 256)
			r->data[r->size] = 1, r->data[r->size + 1] = 254, memset(r->data + r->size + 2, 'x', 254);
	atomic_signal_fence(memory_order_seq_cst);
	r->valid = BROKEN("valid is 2") ? 2 : 1;
	atomic_signal_fence(memory_order_seq_cst);
	*variable() = BROKEN("a wild record") ? (void *)4096 : r;
	printf("%ld %u\n", syscall(SYS_gettid), number);
	fflush(stdout);
	pthread_barrier_wait(&started);
	if (getenv("CHURN"))
		churn(r, number);
	if (getenv("VFORK") && number == 0 && !vfork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			syscall(SYS_ppoll, 0, 0, 0, 0, 0);
	}
	pthread_barrier_wait(&detached);
	if (detach)
		*variable() = 0;
	pthread_barrier_wait(&detached);
	for (;;)
		pause();
	return 0;
}

static pid_t publisher; // the process id

static int child(void *unused) {
	(void)unused;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (getppid() == publisher) // unless it has ended before the call
		pause();
	_exit(0);
}

int main(int argc, char **argv) {
	int threads = atoi(argv[1]);
	if (getenv("BREAK"))
		broken = getenv("BREAK");
	if (argc > 2) {
		void *library = dlopen(argv[2], RTLD_NOW);
		if (!library) {
			fprintf(stderr, "%s\n", dlerror());
			return 4;
		}
		variable = (void **(*)(void))dlsym(library, "variable");
	}
#ifndef WITHOUT_VARIABLE
	else
		variable = own;
#endif
	forget_robust_list();
	signal(SIGRTMIN, handle);
	if (BROKEN("the timestamp comes first"))
		getchar(); // wait until the checker has attached
	if (getenv("FORGE"))
		forge();
	publish();
	if (BROKEN("two contexts"))
		publish();
	pthread_barrier_init(&started, 0, (unsigned)threads + 1);
	pthread_barrier_init(&detached, 0, (unsigned)threads + 1);
	for (int i = 0; i < threads; i++) {
		pthread_t t;
		pthread_create(&t, 0, work, (void *)(uintptr_t)i);
	}
	pthread_barrier_wait(&started);
	if (getenv("FIRST")) {
		static struct record first;
		fill(&first, (unsigned)threads);
		first.valid = 1;
		*variable() = &first;
		printf("%ld %d\n", syscall(SYS_gettid), threads);
	}
	puts("ready");
	fflush(stdout);
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "update\n"))
			publish();
		if (!strcmp(line, "exec\n"))
			execv("/proc/self/exe", argv);
		if (!strcmp(line, "fork\n")) {
			publisher = getpid();
			if (!fork())
				child(0);
			static char stack[1 << 16];
			clone(child, stack + sizeof stack, CLONE_VM | SIGCHLD, 0); // as in vfork, but without waiting
		}
		if (!strcmp(line, "detach\n")) {
			detach = 1;
			pthread_barrier_wait(&detached);
			pthread_barrier_wait(&detached);
		}
		if (!strcmp(line, "signals\n"))
			printf("%u\n", signals);
		else
			puts("done");
		fflush(stdout);
	}
	return 0;
}
