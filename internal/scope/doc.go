// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package scope encodes, as OTEP 4947 has it, those attributes of contexts that are published
// with spans.
//
// It does not know to which span the attributes go.
package scope
