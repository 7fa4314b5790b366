// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux && gc && !android && (amd64 || arm64)

package apmlib

import "github.com/otelctx/otelctx/internal/apmlib/cgoword"

// cWord returns the address of C's thread-local word of the calling thread.
func cWord() (address uintptr, ok bool) { return cgoword.Address(), true }
