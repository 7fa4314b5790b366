// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import "errors"

// Errors of [Start].
var (
	// ErrNotFound is returned if there is no such program.
	ErrNotFound = errors.New("command not found")
	// ErrNotExecutable is returned if the file exists but cannot be executed.
	ErrNotExecutable = errors.New("the command cannot be executed")
	// ErrNotPermitted is returned if the kernel does not let this process trace the program.
	ErrNotPermitted = errors.New("not permitted to trace the command")
)
