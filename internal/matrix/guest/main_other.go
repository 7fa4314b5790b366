// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "the guests of the matrix run Linux")
	os.Exit(1)
}
