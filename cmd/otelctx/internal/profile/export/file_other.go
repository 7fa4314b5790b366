// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package export

import (
	"errors"
	"io/fs"
)

// refusePlanted returns nil, because the check requires Unix owners and permissions.
func refusePlanted(string) error { return nil }

// mayReplace returns false, because not every system can replace open files.
func ownerOf(fs.FileInfo) (int, bool) { return 0, false }

func mayReplace(fs.FileInfo) bool { return false }

func newPending(string) (pending, error) { return nil, errors.ErrUnsupported }
