// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package scopedattr

// underRace says that the race detector empties the pools of the SDK at random.
const underRace = false
