// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// A library with the thread-local variable of OTEP 4947, in C or C++.
#ifdef __cplusplus
#define _Thread_local thread_local
extern "C" {
#endif
__attribute__((visibility("default"))) _Thread_local void *otel_thread_ctx_v1;
#ifdef LARGE
// This block is larger than the space that the loader reserves for the thread-local variables of
// libraries that are loaded later.
__attribute__((visibility("default"))) _Thread_local char large[1 << 16] = {1};
#endif
void **variable(void) { return &otel_thread_ctx_v1; }
#ifdef __cplusplus
}
#endif
