// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package environment reads the environment variables with which operators configure otelctx. It
// holds their names and descriptions, and parses their values. The table in docs/no-code.md is
// generated from [All].
//
// An invalid value is ignored, and reported to [otel.Handle] once per process, regardless of how many
// providers read it.
//
// The package does not know what otelctx does with a value.
package environment
