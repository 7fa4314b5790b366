// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package boottime reads CLOCK_BOOTTIME, the clock that dates process contexts. It
// counts nanoseconds since the machine started, suspension included, and is the same in
// every process outside a time namespace.
//
// It imports nothing of otelctx.
package boottime
