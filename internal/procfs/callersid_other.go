// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package procfs

// CallersID returns tid.
func (f FS) CallersID(_, tid int) (int, error) { return tid, nil }
