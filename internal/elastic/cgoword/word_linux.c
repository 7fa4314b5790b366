// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux && (amd64 || arm64)

// initial-exec: the word is at the same distance from the thread pointer on all
// threads, or the program does not load.
static __thread void *word __attribute__((tls_model("initial-exec")));

void *otelctx_thread_word(void) { return &word; }
