// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package soak runs a service that publishes everything otelctx can publish, for a long time.
// Readers of every kind start and exit, are stopped and killed, and the resource changes every
// second. The test checks that nothing grows and that nothing wrong is ever published.
//
// There are two sources of truth. Samples of otelctx record contain the number of their span on the
// stack. Other readers are compared with the ledger: a file in which the service records each span
// before it may be published, and its end after it may no longer be published.
//
// Everything is in tests. They take seconds in go test; make bench WHAT=soak runs them for ten
// minutes, or for SOAK_TIME.
package soak
