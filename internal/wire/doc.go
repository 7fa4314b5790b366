// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire owns every format that otelctx lays down in memory for other processes
// to read. It has the constants, structs and offsets, and the assertions that hold them
// in place. Writers and readers share this package and nothing else, so that a format
// has exactly one definition.
//
// All multi-byte fields are in the byte order of the machine: writer and reader
// always share one.
//
// It knows nothing of goroutines, of the SDK, and of who writes or reads when.
package wire
