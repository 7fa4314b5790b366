// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command unsampled is sampled without the import.
package main

import (
	"fmt"
	"runtime"
)

func main() { fmt.Println(runtime.MemProfileRate) }
