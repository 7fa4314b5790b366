// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command collector is an OpenTelemetry Collector built from the Collector's own modules: the OTLP
// receiver, the memory limiter, and the file and debug exporters. Without --config it uses the
// config.yaml next to this file.
//
//	collector --feature-gates=service.profilesSupport
//	collector validate --feature-gates=service.profilesSupport --config FILE
//
// The opentelemetry-collector-contrib distribution has the same components and accepts the same
// configuration and flags.
package main
