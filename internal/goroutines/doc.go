// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package goroutines stores the position of each goroutine (the span that it is in) in a table
// indexed by goroutine id, which other processes read.
//
// A goroutine stores only its own entry, with two plain stores. Goroutines whose ids are equal modulo
// 65,536 share an entry: the one that stored last owns it. The two words of an entry verify each
// other, so an entry with one word from each of two goroutines belongs to neither.
//
// The package does not know whether spans are live.
package goroutines
