// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package membarrier

// Announce reports that there is no [Private].
func Announce() bool { return false }

// Ready reports that it never is.
func Ready() bool { return false }

// Private does nothing and returns false.
func Private() bool { return false }
