// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

// put stores to a field of a claimed entry. On amd64 stores are seen in their order,
// and the claim before it and the version's store behind it are atomic, which the
// compiler moves nothing across; an atomic store here would be a locked instruction,
// and there are sixteen of them. The race detector would see a store that is not
// atomic beside loads that are; what keeps those from using a half-written entry is
// its version.
//
//go:norace
func put(field *uint64, v uint64) { *field = v }

// put32 is put for places.
//
//go:norace
func put32(field *uint32, v uint32) { *field = v }
