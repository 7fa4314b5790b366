// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import "github.com/otelctx/otelctx/internal/childproc"

const (
	roleService = "service"
	roleRefused = "refused"
)

func serveParent(*childproc.Parent) {}

func refusedParent(*childproc.Parent) {}
