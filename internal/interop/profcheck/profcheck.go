// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profcheck replaces a package that a test of the OpenTelemetry eBPF profiler imports, but
// that is missing on the module proxy. No code compiled here uses it, but go mod tidy fails without
// it.
package profcheck
