// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package scope encodes the context-scoped attributes that are published with spans, as OTEP 4947
// defines.
//
// The package does not depend on spans.
package scope
