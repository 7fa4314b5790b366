// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package export hands profiles on: to a file, in the format that its name asks for,
// or to an OpenTelemetry collector.
//
// It does not know which processes were recorded, nor how samples are taken.
package export
