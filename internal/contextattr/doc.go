// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package contextattr is what a context carries of context-scoped attributes (OTEP 4931). It
// imports the OpenTelemetry API alone, so that libraries which only set attributes link no
// more than that.
//
// It does not know who reads the attributes.
package contextattr
