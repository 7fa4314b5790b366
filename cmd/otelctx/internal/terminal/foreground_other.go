// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package terminal

import "io"

// InForeground reports whether w is a terminal.
func InForeground(w io.Writer) bool { return IsTerminal(w) }
