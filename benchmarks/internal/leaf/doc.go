// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package leaf is what the slots of a ring are compared with. It is one assembly
// function that stores the same fields to the slot of the calling thread or goroutine.
// Nothing keeps others from doing so at the same time.
package leaf
