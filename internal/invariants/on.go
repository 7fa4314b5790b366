// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race || invariants

package invariants

// Enabled is true if checks are compiled in.
const Enabled = true

// Check panics if holds is false. what describes the invariant.
func Check(holds bool, what string) {
	if !holds {
		panic("otelctx: invariant: " + what)
	}
}
