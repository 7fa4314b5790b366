// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package contexts tests that readers find spans if dd-trace-go publishes a process context, for
// the orders of starts and stops that occur in services.
package contexts
