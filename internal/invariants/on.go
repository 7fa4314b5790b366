// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race || invariants

package invariants

// Enabled is whether there are checks.
const Enabled = true

// Check panics if something does not hold.
func Check(holds bool, what string) {
	if !holds {
		panic("otelctx: invariant: " + what)
	}
}
