// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads what otelctx needs from /proc.
//
// It has its own parser for /proc/pid/maps because of what the well-kept one,
// github.com/prometheus/procfs v0.23.0, does with a hostile process. Proc.ProcMaps
// builds the whole list, at about 200 bytes a line, before the caller sees any of it. A
// process may have millions of mappings. It splits lines at every space and joins the
// name with single ones, so that names with one space and with two look the same. And
// it does not check its scanner's error, so that an overlong line silently ends the
// list.
//
// It knows nothing of what is in the mappings, and imports nothing of otelctx.
package procfs
