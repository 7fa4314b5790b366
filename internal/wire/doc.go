// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire defines every memory format that otelctx publishes for other processes: constants,
// structs, offsets, and compile-time assertions of the layout. Writers and readers share only this
// package, so that each format has exactly one definition.
//
// All multi-byte fields are in the byte order of the machine, which writer and reader always share.
//
// The package does not depend on the SDK or the Go runtime. Callers decide when to read and write.
package wire
