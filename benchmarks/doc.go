// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package benchmarks compares otelctx with its peers and with doing nothing. It is a separate
// module so that the peers stay out of otelctx's go.mod. Go commands in the repository's root do
// not see it, and `go test ./benchmarks/...` fails there. From the root, run
//
//	go -C benchmarks test -run '^$' -bench .
//
// BenchmarkService measures what users pay: an HTTP service with six spans per request. A benchmark
// that cannot run on this machine is skipped; -v prints the reason. README.md describes the
// benchmarks.
package benchmarks
