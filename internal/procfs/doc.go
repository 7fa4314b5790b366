// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads the state of processes and threads from /proc.
//
// It has its own parser for /proc/pid/maps, because the usual one (github.com/prometheus/procfs
// v0.23.0) is not safe with hostile processes. First, its Proc.ProcMaps builds the whole list
// before it returns, at about 200 bytes a line, and a process may have millions of mappings.
// Second, it replaces every sequence of spaces in a name by one space, so different names look the
// same. Third, it ignores errors of its scanner, so an overlong line silently ends the list.
//
// The package does not interpret mappings, and imports no other package of otelctx.
package procfs
