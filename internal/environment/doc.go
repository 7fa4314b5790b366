// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package environment is the one place that knows the environment variables by which
// operators decide what otelctx does. It has their names, their descriptions, and how
// their values are read. The table in docs/no-code.md is made of [All].
//
// An invalid value is reported to [otel.Handle] once in the life of the process, however
// many providers read it, and counts as not set.
//
// It does not know what otelctx does with a value.
package environment
