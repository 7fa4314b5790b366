// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package soak runs a service that publishes everything otelctx can publish, for a long time. Readers of every kind come
// and go, are stopped and killed, and the resource changes every second. The test checks that nothing grows and that
// nothing wrong is ever shown.
//
// There are two sources of truth. Samples of otelctx record contain the number of their span on the stack. Other readers
// are compared with the ledger: a file in which the service notes each span before it may be shown, and its end after it
// may no longer be shown.
//
// Everything is in tests. They take seconds in go test; make bench WHAT=soak runs ten minutes, or SOAK_TIME.
package soak
