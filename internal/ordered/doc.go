// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ordered stores data that other threads and processes read without a lock. Its stores
// become visible in a certain order, as atomic stores would. But on amd64, where the CPU makes
// stores visible in program order anyway, they are plain stores, without the locked instruction of
// an atomic store in Go.
//
// The compiler could still reorder plain stores, but it moves no store across an atomic operation.
// Therefore [StoreBarrier] ends with an atomic load, and [StoreRelease] and [StorePointerRelease] begin with one. The
// stores of [Store] and [Store32] in between are not ordered among themselves. A function call would
// not be enough, because the compiler may inline the function. On other architectures, and with the
// race detector, all functions make atomic stores. If several threads store to the same field at
// the same time, any one of the values may remain.
//
// A later load may happen before one of these stores becomes visible. With an atomic store, this is
// impossible. If the writer loads a reader's answer after storing, it needs an atomic
// read-modify-write operation in between.
//
// The package imports no other package of otelctx.
package ordered
