// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package export

import (
	"errors"
	"io/fs"
)

// refusePlanted returns nil: there are no directories in which everybody may create files.
func refusePlanted(string) error { return nil }

// mayReplace returns false: files that are open cannot be replaced everywhere.
func mayReplace(fs.FileInfo) bool { return false }

func newPending(string) (pending, error) { return nil, errors.ErrUnsupported }
