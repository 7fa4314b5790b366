// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package invariants says whether a program checks, at each step, what must always hold of
// the span path. It does if it is built with -race or with the tag invariants. Without
// either, the checks are not compiled in.
//
// It does not know what is checked, and imports nothing of otelctx.
package invariants
