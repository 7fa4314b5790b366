// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads the state of processes and threads from /proc.
//
// It has its own parser for /proc/pid/maps because the established one,
// github.com/prometheus/procfs v0.23.0, is not safe with hostile processes. Its Proc.ProcMaps
// builds the whole list, at about 200 bytes a line, before it returns, and a process may have
// millions of mappings. It splits lines at every space and joins the parts of the name with single
// spaces, so names with one space and with two look the same. And it ignores its scanner's error, so
// an overlong line silently ends the list.
//
// The package does not interpret mappings, and imports no other package of otelctx.
package procfs
