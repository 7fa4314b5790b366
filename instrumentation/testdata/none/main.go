// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command none does not use OpenTelemetry.
package main

import "fmt"

func main() { fmt.Println("no OpenTelemetry") }
