// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ownprofile detects whether the process is taking a CPU profile of itself.
package ownprofile
