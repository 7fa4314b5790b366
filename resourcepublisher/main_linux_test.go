// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"testing"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		"advertise under a filter": advertiseUnderFilter,
		"build providers":          buildProviders,
		"publish under a filter":   publishUnderFilter,
		"fail to update":           failToUpdate,
	})
}
