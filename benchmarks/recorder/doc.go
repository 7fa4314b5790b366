// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package recorder measures what otelctx record takes: beside many idle processes, over
// many minutes, and beside perf record. Everything is in the tests, which measure only
// with -measure: make bench WHAT=recorder runs them. README.md in the directory above has the figures.
package recorder
