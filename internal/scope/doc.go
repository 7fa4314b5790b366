// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package scope is what a context carries of context-scoped attributes (OTEP 4931), and
// how those among them that are published with spans are encoded (OTEP 4947). It is
// apart from package scopedattr so that who publishes spans needs no SDK for logs and
// metrics.
package scope
