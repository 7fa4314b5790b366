// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// This program loads the library named by its argument and uses both symbols. It uses the
// thread-local symbol on two threads.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *library;

static void check(int ok, const char *what) {
	if (!ok) {
		fprintf(stderr, "%s: %s\n", what, dlerror());
		exit(1);
	}
}

static void *word(void) {
	void **at = dlsym(library, "elastic_apm_profiling_correlation_tls_v1");
	check(at != NULL, "tls");
	check(*at == NULL, "tls is not zero at first");
	*at = at;
	return at;
}

static void *thread(void *unused) { return word(); }

int main(int argc, char **argv) {
	check(argc == 2, "usage");
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	check(library != NULL, "dlopen");
	void **storage = dlsym(library, "elastic_apm_profiling_correlation_process_storage_v1");
	check(storage != NULL, "storage");
	check(*storage == NULL, "storage is not zero at first");
	*storage = storage;
	void *mine = word(), *other;
	pthread_t id;
	check(pthread_create(&id, NULL, thread, NULL) == 0, "pthread_create");
	check(pthread_join(id, &other) == 0, "pthread_join");
	check(mine != other, "threads share the word");
	check(dlclose(library) == 0, "dlclose");
	puts("ok");
	return 0;
}
