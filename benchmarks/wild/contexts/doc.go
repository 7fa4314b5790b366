// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package contexts has a test of spans beside the process context of dd-trace-go, which
// starts and stops as services have it.
package contexts
