// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package profile builds OpenTelemetry profiles of CPU samples
// (opentelemetry.proto.profiles.v1development), checks the structure of such profiles,
// and converts them to pprof.
//
// It does not know where samples come from, nor where profiles go.
package profile
