// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command sampled prints the rate at which its runtime samples allocations.
package main

import (
	"fmt"
	"runtime"

	_ "github.com/otelctx/otelctx/spanctx/allocs"
)

func main() { fmt.Println(runtime.MemProfileRate) }
