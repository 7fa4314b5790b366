// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// This file publishes process contexts (OTEP 4719) and thread contexts (OTEP 4947) for programs in
// other languages. It does the parts that require C: the mapping, the order of writes, and the
// thread-local variable. The programs encode payloads and records themselves. -DJNI builds a library
// for Java, and -DNAPI builds one for Node.js.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
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

__attribute__((visibility("default"))) _Thread_local void *otel_thread_ctx_v1;

struct header {
	char signature[8];
	uint32_t version, size;
	_Atomic uint64_t published_at;
	uint64_t payload;
};

// otel_publish publishes a payload of at most 65,536 bytes, or updates the previous one. Callers
// must serialize calls. It returns 0, or -1 if nothing is published.
int otel_publish(const void *payload, uint32_t size) {
	static struct header *header;
	static uint8_t copies[2][65536];
	static int next;
	uint64_t before = 0;
	if (size > sizeof copies[0])
		return -1;
	memcpy(copies[next], payload, size);
	if (!header) {
		int fd = (int)syscall(SYS_memfd_create, "OTEL_CTX", 1U | 2U | 8U);
		if (fd < 0)
			fd = (int)syscall(SYS_memfd_create, "OTEL_CTX", 1U | 2U);
		if (fd < 0 || ftruncate(fd, sizeof *header))
			return -1;
		struct header *h = mmap(0, sizeof *header, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
		close(fd);
		if (h == MAP_FAILED || madvise(h, sizeof *header, MADV_DONTFORK))
			return -1;
		header = h;
		memcpy(header->signature, "OTEL_CTX", 8);
		header->version = 2;
	} else {
		before = atomic_exchange(&header->published_at, 0);
		atomic_thread_fence(memory_order_seq_cst);
	}
	header->payload = (uintptr_t)copies[next];
	header->size = size;
	next = !next;
	atomic_thread_fence(memory_order_seq_cst);
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	atomic_store(&header->published_at, now > before ? now : before + 1);
	prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, header, sizeof *header, "OTEL_CTX");
	return 0;
}

// otel_attach publishes a copy of a record for the calling thread. A null record detaches.
void otel_attach(const void *record, uint32_t size) {
	static _Thread_local void *copy;
	otel_thread_ctx_v1 = 0;
	atomic_signal_fence(memory_order_seq_cst);
	free(copy);
	copy = 0;
	if (!record)
		return;
	copy = malloc(size);
	memcpy(copy, record, size);
	atomic_signal_fence(memory_order_seq_cst);
	otel_thread_ctx_v1 = copy;
}

#ifdef JNI
#include <jni.h>

JNIEXPORT jint JNICALL Java_Publisher_publish(JNIEnv *env, jclass class, jbyteArray payload) {
	(void)class;
	jbyte *bytes = (*env)->GetByteArrayElements(env, payload, 0);
	jint failed = otel_publish(bytes, (uint32_t)(*env)->GetArrayLength(env, payload));
	(*env)->ReleaseByteArrayElements(env, payload, bytes, JNI_ABORT);
	return failed;
}

JNIEXPORT jlong JNICALL Java_Publisher_attach(JNIEnv *env, jclass class, jbyteArray record) {
	(void)class;
	jbyte *bytes = (*env)->GetByteArrayElements(env, record, 0);
	otel_attach(bytes, (uint32_t)(*env)->GetArrayLength(env, record));
	(*env)->ReleaseByteArrayElements(env, record, bytes, JNI_ABORT);
	return syscall(SYS_gettid);
}
#endif

#ifdef NAPI
#include <node_api.h>

static napi_value publish(napi_env env, napi_callback_info info) {
	napi_value argument, result;
	size_t count = 1, size;
	void *bytes;
	napi_get_cb_info(env, info, &count, &argument, 0, 0);
	napi_get_buffer_info(env, argument, &bytes, &size);
	napi_create_int32(env, otel_publish(bytes, (uint32_t)size), &result);
	return result;
}

NAPI_MODULE_INIT() {
	napi_value function;
	napi_create_function(env, "publish", NAPI_AUTO_LENGTH, publish, 0, &function);
	napi_set_named_property(env, exports, "publish", function);
	return exports;
}
#endif
