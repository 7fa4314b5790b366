// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux && gc && !android && (amd64 || arm64)

package elastic

import "github.com/otelctx/otelctx/internal/elastic/cgoword"

// cWord returns the address of the calling thread's C variable.
func cWord() (address uintptr, ok bool) { return cgoword.Address(), true }
