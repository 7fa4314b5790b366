// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package spanctx

// raceEnabled reports whether the race detector is on. It reports a race between the withdrawal of
// labels and a profile that reads them, so labels are not withdrawn then.
const raceEnabled = false
