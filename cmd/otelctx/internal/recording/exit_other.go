// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package recording

import (
	"errors"
	"fmt"
)

type exit struct{}

func watchExit(int) (exit, error) {
	return exit{}, fmt.Errorf("recording: %w", errors.ErrUnsupported)
}

func (exit) happened() bool { return false }

func (exit) close() {}
