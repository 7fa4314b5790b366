// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import "errors"

// Errors of [Start].
var (
	// ErrNotFound says that there is no such program.
	ErrNotFound = errors.New("command not found")
	// ErrNotExecutable says that there is a file, which cannot be executed.
	ErrNotExecutable = errors.New("the command cannot be executed")
	// ErrNotPermitted says that this user may not trace programs.
	ErrNotPermitted = errors.New("not permitted to trace the command")
)
