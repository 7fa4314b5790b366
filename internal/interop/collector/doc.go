// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command collector is an OpenTelemetry Collector, made of the collector's own modules:
// the OTLP receiver, the memory limiter, and the file and debug exporters. Without --config it does
// what config.yaml beside this file says.
//
//	collector --feature-gates=service.profilesSupport
//	collector validate --feature-gates=service.profilesSupport --config FILE
//
// The opentelemetry-collector-contrib distribution has these components too, and takes
// the same configuration and flags.
package main
