// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command none has nothing to do with OpenTelemetry.
package main

import "fmt"

func main() { fmt.Println("no OpenTelemetry") }
