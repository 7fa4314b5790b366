// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package spanctx

// raceEnabled is true in programs built with the race detector. The race detector reports a race
// between the withdrawal of labels and a profile that reads them, so these programs keep labels.
const raceEnabled = true
