// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package synctestbubble

// In returns false: on this platform, otelctx has no goroutines that must stay outside a bubble.
func In() bool { return false }
