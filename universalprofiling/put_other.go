// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race

package universalprofiling

import "sync/atomic"

// put stores to a field of a claimed entry, to be seen after the claim.
func put(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

// putLast gives a claimed entry free: it stores to the version, to be seen after what
// was put before it.
func putLast(version *uint64, v uint64) { atomic.StoreUint64(version, v) }
