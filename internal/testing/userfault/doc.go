// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package userfault lets a test have memory that makes readers wait, as a hostile
// process can.
//
// It is for tests only, in child processes: what waits is let go by their end.
package userfault
