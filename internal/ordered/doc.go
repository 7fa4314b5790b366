// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ordered stores data that other threads and processes read without a lock. Its stores
// become visible in the order in which they are made, like atomic stores. On CPUs that guarantee
// this order anyway, they avoid the locked instruction of Go's atomic stores.
//
// On amd64 the CPU makes stores visible in program order, and the compiler moves no store across an
// atomic operation. So plain stores between two atomic operations are enough: [PutFirst] ends with
// an atomic load, and [PutLast] begins with one. Function calls do not count as barriers, because
// the compiler may inline them. On other architectures, and with the race detector, all functions
// make atomic stores. Concurrent stores to the same field must store the same value.
//
// Unlike atomic stores, these stores may be overtaken by later loads. A writer that stores and then
// loads a reader's answer needs an atomic read-modify-write operation in between.
//
// The package knows no format, and imports nothing from otelctx.
package ordered
