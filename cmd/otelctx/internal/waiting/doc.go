// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package waiting tells what the goroutines of a process do that are in live spans: their state, what
// they wait for, and their stacks with names.
//
// It joins package reader, which reads a process, with package symbols, which names its code. It
// neither stops the process nor calls into it.
package waiting
