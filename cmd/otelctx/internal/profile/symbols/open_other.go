// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package symbols

import (
	"errors"
	"fmt"
	"os"
)

func (*Process) openFile(*Region) (*os.File, fileID, error) {
	return nil, fileID{}, fmt.Errorf("openFile: %w", errors.ErrUnsupported)
}

func (*Process) openPerfMap() (*os.File, error) {
	return nil, fmt.Errorf("openPerfMap: %w", errors.ErrUnsupported)
}

func (*Process) openDebugFile(bool, string) (*os.File, fileID, error) {
	return nil, fileID{}, fmt.Errorf("openDebugFile: %w", errors.ErrUnsupported)
}

func reopen(*os.File) (*os.File, error) { return nil, fmt.Errorf("reopen: %w", errors.ErrUnsupported) }

func readOwnVDSO() ([]byte, error) { return nil, fmt.Errorf("readOwnVDSO: %w", errors.ErrUnsupported) }
