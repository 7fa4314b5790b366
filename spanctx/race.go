// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package spanctx

// raceEnabled is whether the race detector watches: it would take the withdrawal of labels,
// and a profile that reads them, for a race.
const raceEnabled = true
