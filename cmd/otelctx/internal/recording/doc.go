// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package recording samples what processes do on the CPU and turns the samples into profiles.
//
// A search finds the processes to record, and queues a scan of each one that is new or has changed. The queue is fair
// between users. A scanner reads what the process publishes, and makes the sampler watch it: from then on it is one of
// the targets. Samples are collected in a batch, while attachers open the files that the sampled addresses are in. A
// symbolizer names the addresses of a batch, adds the samples to the tally, and passes the profile on.
//
// Package recording does not deliver profiles and prints nothing.
package recording
