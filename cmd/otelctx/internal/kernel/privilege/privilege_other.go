// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package privilege

// Restrict does nothing: only Linux has capabilities.
func Restrict() error { return nil }

// Do calls f.
func Do(f func() error) error { return f() }
