// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// A library whose function NAME has the same address in every build, whatever the name. "work" calls it.

#ifdef SPACE // bytes of code
__asm__(".text\n\t.skip " SPACE);
#endif

static void __attribute__((noinline)) NAME(void)
{
	for (volatile int i = 0; i < 100000; i++)
		;
}

void work(void)
{
	NAME();
	__asm__ volatile("" ::: "memory");
}
