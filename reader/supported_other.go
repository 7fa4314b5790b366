// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package reader

import (
	"errors"
	"fmt"
)

func supported() error { return fmt.Errorf("reader: %w", errors.ErrUnsupported) }

func monotonicNow() int64 { return 0 }
