// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/patient"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/sampler"
	"github.com/otelctx/otelctx/reader"
)

// Exit codes. Scripts branch on them: they are part of the interface.
const (
	exitOK           = 0
	exitOther        = 1
	exitUsage        = 2
	exitNoContext    = 3
	exitNotPermitted = 4
	exitProcessGone  = 5
	exitInvalid      = 6
	exitBusy         = 7
	exitNoAnswer     = 8
)

// exitCode returns the exit code for an error of a command.
func exitCode(err error) int {
	switch {
	case errors.Is(err, reader.ErrNoContext), errors.Is(err, reader.ErrNoThreadContext):
		return exitNoContext
	case errors.Is(err, reader.ErrNotPermitted), errors.Is(err, sampler.ErrNotPermitted):
		return exitNotPermitted
	case errors.Is(err, reader.ErrProcessGone):
		return exitProcessGone
	case errors.Is(err, reader.ErrInvalid):
		return exitInvalid
	case errors.Is(err, reader.ErrBusy):
		return exitBusy
	case errors.Is(err, patient.ErrNoAnswer), errors.Is(err, patient.ErrTooMany):
		return exitNoAnswer
	default:
		return exitOther
	}
}
