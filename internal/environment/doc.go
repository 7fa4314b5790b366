// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package environment reads the environment variables that configure otelctx. It contains their
// names and descriptions, and parses their values. The table in docs/no-code.md is generated from
// [All].
//
// An invalid value is ignored, and reported to [otel.Handle] only once per process, even if several
// providers read it.
//
// The package only parses values; its callers act on them.
package environment
