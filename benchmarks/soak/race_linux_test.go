// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package soak

// raceEnabled says that the race detector is on: it keeps memory of its own.
const raceEnabled = true
