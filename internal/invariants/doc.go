// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package invariants enables checks of the span path's invariants in programs built with -race or
// with the tag invariants. In other programs the checks are not compiled in.
//
// The package does not know the invariants that its callers check, and imports nothing from otelctx.
package invariants
