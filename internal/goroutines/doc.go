// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package goroutines keeps what each goroutine is in: a table of positions by goroutine id, which
// other processes read too.
//
// A goroutine stores its own entry and nobody else's, with two plain stores. Goroutines whose ids
// are equal modulo 65,536 share an entry: the one that stored last has it. The two words of an
// entry check each other, so an entry of which two goroutines have stored half each belongs to
// neither.
//
// It does not know whether spans are live.
package goroutines
