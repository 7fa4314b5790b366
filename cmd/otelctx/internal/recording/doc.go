// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package recording samples what processes do on the CPU and turns the samples into profiles. It finds the
// processes to record, tells the sampler when they start, end or begin to publish, and names the sampled
// addresses.
//
// It does not deliver profiles and prints nothing.
package recording
