// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package recorder measures the cost of otelctx record: how much it slows down a busy service, its
// CPU time with many idle processes, its CPU time compared with perf record, and what it costs to
// sample and record allocations. The measurements are tests that are skipped without the flag
// -measure, which make bench WHAT=recorder sets.
package recorder
