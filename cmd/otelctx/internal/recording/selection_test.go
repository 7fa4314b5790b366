// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInCgroup(t *testing.T) {
	const id = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789abcdef"
	const path = "/system.slice/docker-" + id + ".scope/app"
	for want, in := range map[string]bool{
		"/": true, "/sys/fs/cgroup/": true, "/system.slice": true, "/system.slice/": true, "/system": false,
		"/sys/fs/cgroup/system.slice": true, path: true, path + "/x": false,
		"system.slice": true, "app": true, "ap": false,
		id: true, id[:12]: true, id[:11]: false, "docker-0123456789ab": false,
	} {
		assert.Equal(t, in, inCgroup(path, want), want)
	}
}
