// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && !amd64

package profiler

import "github.com/otelctx/otelctx/internal/testing/childproc"

// moreRoles are the roles of tests for this platform.
var moreRoles = map[string]func(*childproc.Parent){}
