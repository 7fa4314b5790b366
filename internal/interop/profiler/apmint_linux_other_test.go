// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && !amd64

package profiler

import "github.com/otelctx/otelctx/internal/testing/childproc"

// moreRoles are the roles of children that only the tests on this platform use.
var moreRoles = map[string]func(*childproc.Parent){}
