// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package recording records what processes use the processor for. It keeps the sampler
// informed of processes that come, go, and begin to publish, and makes profiles of the
// samples.
//
// It does not know where profiles go, nor what is printed of them.
package recording
