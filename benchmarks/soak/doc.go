// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package soak runs a service with all that otelctx can publish, for long, while readers
// of every kind look at it, come and go, are stopped and killed, and its resource changes
// every second. It finds out whether anything grows, and whether anything is ever shown
// that was not so.
//
// What was so is a file in which the service notes each span before it may be shown and
// after it may not any more: the ledger. Whatever a reader shows is compared with it.
//
// Everything is in the tests; make soak runs them for ten minutes, and what that has
// shown is in docs/soak.md in the repository's root.
package soak
