// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profile builds OpenTelemetry profiles (opentelemetry.proto.profiles.v1development) from samples,
// and validates the structure of such profiles.
//
// It neither takes samples nor delivers profiles.
package profile
