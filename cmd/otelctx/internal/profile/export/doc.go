// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package export writes profiles to a file, in the format that the file's name selects, or sends them to an
// OpenTelemetry collector.
//
// It does not depend on how processes are selected and sampled.
package export
