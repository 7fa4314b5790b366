// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !cgo && linux && gc && !android && (amd64 || arm64)

package elastic

// cWord returns false: there is no C variable without cgo.
func cWord() (address uintptr, ok bool) { return 0, false }
