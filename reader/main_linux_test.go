// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"testing"

	"github.com/otelctx/otelctx/internal/childproc"
)

func TestMain(m *testing.M) { childproc.Main(m, threadRoles) }
