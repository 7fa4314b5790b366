// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ordered stores what others read without a lock. Stores are seen in the order in
// which they are made here, like atomic stores. Where the processor keeps that order
// anyway, they do without the locked instruction of Go's atomic stores.
//
// On amd64 the processor makes stores visible in program order, and the compiler moves no store
// across an atomic operation. So plain stores between two atomic operations will do: [PutFirst]
// ends with an atomic load, and [PutLast] begins with one. Nothing relies on calls, which the
// compiler may inline. Elsewhere, and for the race detector, all of them are atomic stores. Nobody
// else may store to the same place meanwhile, except the same value.
//
// Unlike atomic stores, they may be overtaken by loads that follow. A writer that then
// checks whether somebody has looked needs an atomic operation in between.
//
// It knows no format, and imports nothing of otelctx.
package ordered
