// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"maps"
	"testing"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// roleIncessant is the role of a child that updates its context all the time.
const roleIncessant = "incessant publisher"

func TestMain(m *testing.M) {
	roles := map[string]func(*childproc.Parent){roleIncessant: publishIncessantly}
	maps.Copy(roles, moreRoles)
	childproc.Main(m, roles)
}

// start starts a child with the given role. It skips the test if the kernel forbids this process to
// read the child.
func start(t *testing.T, role string) *childproc.Child {
	t.Helper()
	childproc.NeedReading(t)
	return childproc.Start(t, role, nil)
}
