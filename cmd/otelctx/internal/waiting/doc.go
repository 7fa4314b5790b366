// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package waiting describes the goroutines of a process that are in live spans: their state, what they wait
// for, and their symbolized stacks.
//
// It combines package reader, which reads the process, with package symbols, which symbolizes its code. It
// neither stops the process nor calls into it.
package waiting
