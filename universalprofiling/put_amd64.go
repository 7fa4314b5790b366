// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package universalprofiling

// put stores to a field of a claimed entry. On amd64 stores are seen in their order,
// and the claim before it and what gives the entry free behind it are atomic or a
// call, which the compiler moves nothing across. What keeps others from using a
// half-written entry is its version.
func put(field *uint64, v uint64) { *field = v }

// putLast gives a claimed entry free: it stores to the version, to be seen after what
// was put before it.
//
//go:noinline
func putLast(version *uint64, v uint64) { *version = v }
