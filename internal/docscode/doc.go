// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package docscode tests documents: it compiles their Go code and follows their links.
package docscode
