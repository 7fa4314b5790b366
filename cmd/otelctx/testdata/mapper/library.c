// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// A library whose function NAME is where that of another build of it is, and can be called as "work" too.

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
