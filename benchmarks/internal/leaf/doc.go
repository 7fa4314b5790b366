// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package leaf is the baseline for the slots of a ring: a single assembly function that stores the
// same fields to the slot of the calling thread or goroutine. Unlike a ring it does not prevent
// concurrent writes.
package leaf
