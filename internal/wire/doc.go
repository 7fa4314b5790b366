// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire defines every memory format that otelctx publishes for other processes: constants,
// structs, offsets, and compile-time assertions of the layout. Writers and readers share no other
// package, so each format has exactly one definition.
//
// All multi-byte fields are in the byte order of the machine, which writer and reader always share.
//
// The package depends neither on the SDK nor on runtime internals. Unless stated otherwise, callers
// must synchronize access to the memory.
package wire
