// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package collector tests what package scopedattr adds to spans, log records and
// measurements where it ends up: in the OpenTelemetry Collector, sent by OTLP to its
// receiver.
//
// It is a module of its own so that the collector never enters otelctx's go.mod.
package collector
