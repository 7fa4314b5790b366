// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package collectortest tests otelctx's profiles against the OpenTelemetry Collector: its
// OTLP receiver gets them, and its own code decodes them. It is a module of its own for
// the collector's sake, whose dependencies are for tests alone.
package collectortest
