// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostile has tests only: programs that attack who records them, and what otelctx
// makes of it.
package hostile
