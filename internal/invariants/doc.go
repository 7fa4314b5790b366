// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package invariants enables internal checks in programs built with -race or with the tag
// invariants. In other programs, the checks are not compiled.
//
// The package imports no other package of otelctx.
package invariants
