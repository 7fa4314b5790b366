// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package interop has the tests with real counterparts: the eBPF profiler's code, the OpenTelemetry Collector, containers, and
// servers for profiles. They are a module of their own, because no user of otelctx should get these dependencies.
package interop
