// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package docscode tests the documents: their Go code must compile, and the files and headings to
// which they refer must exist.
package docscode
