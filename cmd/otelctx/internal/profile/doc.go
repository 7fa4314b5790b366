// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profile builds OpenTelemetry profiles (opentelemetry.proto.profiles.v1development) from samples,
// validates the structure of such profiles, and converts them to pprof.
//
// It neither takes samples nor delivers profiles.
package profile
