// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// A C program that uses Go libraries. It opens the libraries named by its arguments, or
// is linked with one (-DARCHIVE), and lets each work until a line arrives on standard input.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef void begin_fn(char *name);
typedef void end_fn(void);

#ifdef ARCHIVE
extern begin_fn Begin;
extern end_fn End;
#else
static void *symbol(void *library, const char *name) {
	void *found = dlsym(library, name);
	if (found == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return found;
}
#endif

int main(int argc, char **argv) {
	char *names[] = {"first", "second"};
	end_fn *ends[2];
	int libraries = 0;
#ifdef ARCHIVE
	Begin(names[0]);
	ends[libraries++] = End;
#else
	for (; libraries < argc - 1 && libraries < 2; libraries++) {
		void *library = dlopen(argv[libraries + 1], RTLD_NOW | RTLD_LOCAL);
		if (library == NULL) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		((begin_fn *)symbol(library, "Begin"))(names[libraries]);
		ends[libraries] = (end_fn *)symbol(library, "End");
	}
#endif
	puts("ready");
	fflush(stdout);
	getchar();
	for (int i = 0; i < libraries; i++)
		ends[i]();
	puts("over");
	return 0;
}
