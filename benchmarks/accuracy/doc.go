// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package accuracy finds out how often each carrier is right, and what it costs to be
// recorded. Child processes work in spans and outside of them. While they burn the
// processor they say what for, in ways that no carrier has to do with. There are two
// instruments.
//
// The first one is otelctx record, another process that hands over OTLP profiles. The
// stack of the code that burns spells a number, and the child writes down which span it
// stands for. The second one stops all threads of a child. Then it reads the carriers,
// and the cells in which the code that burns notes what it does. Nothing moves between
// the two looks.
//
// Everything is in the tests. See README.md in the directory above.
package accuracy
