// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package symbols

import (
	"fmt"
	"os"

	"errors"
)

func (*Process) openFile(*Region) (*os.File, fileID, error) {
	return nil, fileID{}, fmt.Errorf("openFile: %w", errors.ErrUnsupported)
}

func reopen(*os.File) (*os.File, error) { return nil, fmt.Errorf("reopen: %w", errors.ErrUnsupported) }

func readOwnVDSO() ([]byte, error) { return nil, fmt.Errorf("readOwnVDSO: %w", errors.ErrUnsupported) }
