// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package contexts tests that readers find otelctx's spans although dd-trace-go publishes a process
// context of its own, in each order in which a service may start the two.
package contexts
