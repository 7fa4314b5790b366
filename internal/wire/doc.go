// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire defines every memory format that otelctx publishes for other processes: constants,
// structs, offsets, and compile-time assertions of the layout. Writers and readers both use these
// definitions, so each format has exactly one.
//
// All multi-byte fields are in the byte order of the machine, which writer and reader always share.
//
// The package does not depend on the SDK or on Go's runtime internals. It only describes memory:
// callers decide when to read and write it.
package wire
