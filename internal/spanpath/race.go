// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package spanpath

// raceEnabled is true in programs built with the race detector. Such programs keep labels:
// otherwise the race detector would report races between the withdrawal of labels and profiles that
// read them.
const raceEnabled = true
