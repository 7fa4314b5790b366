// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package goroutines publishes the position of each goroutine, that is, the span that it is in.
// Other processes read it from a table that is indexed by goroutine id.
//
// A goroutine stores only its own entry, with two stores and no lock. Goroutines whose ids are
// equal modulo 65,536 share an entry, which belongs to the goroutine that stored last. If two
// goroutines store at the same time, the entry may contain one word from each. Such an entry
// belongs to neither. Readers recognize it, because the second word is computed from the first word
// and the goroutine.
//
// The package stores positions without checking whether their spans are live.
package goroutines
