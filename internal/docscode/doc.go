// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package docscode does what a newcomer does with the documents. It compiles their Go code,
// runs the commands of README.md and of docs/getting-started.md in a clone, and follows
// their links. All of it is in the tests.
package docscode
