// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package testenv

// Race reports whether the race detector is enabled. It makes code about ten times slower,
// allocates, and empties sync.Pools at random.
const Race = true
