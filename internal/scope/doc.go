// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package scope encodes context-scoped attributes as OTEP 4947 specifies, so that they can be
// published with spans.
//
// The package does not depend on spans.
package scope
