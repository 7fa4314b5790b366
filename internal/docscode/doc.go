// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package docscode has tests that compile the Go code of the documents and follow their links.
package docscode
