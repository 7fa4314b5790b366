// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package contexts tests that spans are found beside the process context of
// dd-trace-go, with the order of starts and stops that occur in services.
package contexts
