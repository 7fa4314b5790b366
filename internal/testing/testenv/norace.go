// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package testenv

// Race reports whether the race detector is enabled. It makes code about ten times slower,
// allocates, and makes sync.Pools drop values at random.
const Race = false
