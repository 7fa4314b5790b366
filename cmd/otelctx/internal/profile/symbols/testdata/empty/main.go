// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command empty has no code but the runtime's.
package main

func main() {}
