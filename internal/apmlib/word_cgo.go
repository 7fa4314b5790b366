// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux && gc && !android && (amd64 || arm64)

package apmlib

import "github.com/otelctx/otelctx/internal/apmlib/cgoword"

// cWord returns the address of the calling thread's C variable.
func cWord() (address uintptr, ok bool) { return cgoword.Address(), true }
