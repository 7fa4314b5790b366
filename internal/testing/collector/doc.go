// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package collector tests what package scopedattr adds to spans, log records and
// measurements where it ends up. That is the OpenTelemetry Collector, whose receiver
// gets them by OTLP.
//
// It is a module of its own so that the collector never enters otelctx's go.mod.
package collector
