// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package benchmarks measures otelctx beside its peers and beside doing nothing. It is a
// module of its own so that the peers never enter otelctx's go.mod. Go commands in the
// repository's root do not see it, and `go test ./benchmarks/...` fails there. From the
// root, run
//
//	go -C benchmarks test -run '^$' -bench .
//
// BenchmarkService is the figure that users pay: an HTTP service with six spans per request.
// A benchmark that cannot run on this machine is skipped with the reason, which -v shows.
// README.md describes the benchmarks.
package benchmarks
