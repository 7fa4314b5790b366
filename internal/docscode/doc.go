// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package docscode compiles the Go code in README.md and docs. All of it is in the test.
package docscode
