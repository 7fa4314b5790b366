// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ordered stores what others read without a lock: in the order in which it is
// stored here, as atomic stores are seen, but where the processor keeps that order anyway
// without the locked instruction that Go's atomic stores are there.
//
// On amd64 stores are seen in their order, and the compiler moves nothing across a call or
// an atomic operation. So a plain store will do for what stands between two of those: for
// the fields of an entry that was claimed by compare-and-swap, [Put], and for the one that
// gives it free, [PutLast], which begins with an atomic load. Elsewhere, and for the race
// detector, they are atomic stores. Nobody else may store to the same place meanwhile, unless
// it is the same.
//
// Unlike atomic stores they may be overtaken by loads that follow: who looks at something
// afterwards to see whether another one looked at this needs an atomic operation between.
package ordered
