// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package sdksampler knows the sampler that a TracerProvider has without an option. Samplers
// around none are around that one.
//
// It imports nothing of otelctx.
package sdksampler
