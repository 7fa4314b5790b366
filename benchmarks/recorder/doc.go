// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package recorder measures the cost of otelctx record: to a busy service, with many idle
// processes, in memory over many minutes, and compared with perf record. Everything is in tests,
// which are skipped without -measure; make bench WHAT=recorder sets it.
package recorder
