// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads what otelctx needs from /proc.
//
// It has its own parser for /proc/pid/maps because the well-kept one,
// github.com/prometheus/procfs (looked at in v0.23.0), cannot be pointed at a
// process that may be hostile: Proc.ProcMaps builds the whole list, at about 200
// bytes a line, before the caller sees any of it, and a process may have millions
// of mappings; it splits lines at every space and joins the name with single ones,
// so that "/memfd:a  b" cannot be told from "/memfd:a b"; and it does not look at
// its scanner's error, so that an overlong line silently ends the list.
package procfs
