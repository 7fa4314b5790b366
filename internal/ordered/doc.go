// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ordered stores what others read without a lock. Stores are seen in the order in
// which they are made here, like atomic stores. Where the processor keeps that order
// anyway, they do without the locked instruction of Go's atomic stores.
//
// On amd64 stores are seen in their order, and the compiler moves nothing across a call or an
// atomic operation. So a plain store will do between two of those. [Put] is for the fields of
// an entry that was claimed by compare-and-swap. [PutLast], which begins with an atomic load,
// is for the store that gives the entry free. Elsewhere, and for the race detector, they are
// atomic stores. Nobody else may store to the same place meanwhile, unless it is the same.
//
// Unlike atomic stores, they may be overtaken by loads that follow. A writer that then
// checks whether somebody has looked needs an atomic operation in between.
//
// It knows no format, and imports nothing of otelctx.
package ordered
