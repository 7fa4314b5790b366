// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package soak runs a service with all that otelctx can publish, for long. Readers of
// every kind look at it, come and go, are stopped and killed, and its resource changes
// every second. It finds out whether anything grows, and whether anything is ever shown
// that was not so.
//
// The truth is a file, the ledger. The service notes each span there before it may be
// shown, and again after it may not be shown any more. Whatever a reader shows is
// compared with it.
//
// Everything is in the tests; make bench WHAT=soak runs them for ten minutes, and what that has
// shown is in benchmarks/results.md.
package soak
