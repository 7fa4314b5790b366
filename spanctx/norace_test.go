// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package spanctx

// underRace says that the race detector makes everything some ten times slower.
const underRace = false
