// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package benchmarks measures otelctx beside its peers and beside doing nothing.
// It is a module of its own so that the peers never enter otelctx's go.mod. See
// README.md.
package benchmarks
