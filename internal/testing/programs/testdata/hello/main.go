// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command hello prints the settings that it was built with.
package main

import (
	"fmt"
	"runtime/debug"
)

func main() {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "CGO_ENABLED" || s.Key == "-ldflags" {
			fmt.Println(s.Key, s.Value)
		}
	}
}
