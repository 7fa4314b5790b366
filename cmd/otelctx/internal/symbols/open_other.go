// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package symbols

import (
	"errors"
	"fmt"
	"os"
)

func (*Process) openFile(*mapped) (*os.File, error) {
	return nil, fmt.Errorf("openFile: %w", errors.ErrUnsupported)
}
