// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package soak runs a service for a long time. The service publishes its resource, its spans
// through every carrier, and thread records for Universal Profiling. Meanwhile readers of every
// kind start and exit, are stopped and killed, and the resource changes regularly. The test checks
// that nothing grows and that no reader finds anything wrong.
//
// It knows in two ways which span is right. In samples of otelctx record, the stack encodes the number
// of the span. Spans that other readers find are looked up in the ledger, a file in which the service
// records the start and the end of each span. It records the start before the span can be published,
// and the end when the span can no longer be published.
//
// Everything is in tests. They take seconds in go test; make bench WHAT=soak runs them for ten
// minutes, or for SOAK_TIME.
package soak
