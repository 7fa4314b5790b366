// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package version says which version of otelctx this is.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Module returns the version of the module, such as v0.1.0. If the build did not record it, it returns a
// version that precedes all releases.
func Module() string {
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasPrefix(info.Main.Version, "v") {
		return info.Main.Version
	}
	return "v0.0.0-devel"
}

// Text returns what --version prints: the version of the module, the revision if the build recorded it, the
// Go release and the platform.
func Text() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "otelctx, built without module support"
	}
	revision := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = " " + s.Value + revision
		case s.Key == "vcs.modified" && s.Value == "true":
			revision += " (modified)"
		}
	}
	return fmt.Sprintf("otelctx %s%s %s %s/%s", info.Main.Version, revision, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
