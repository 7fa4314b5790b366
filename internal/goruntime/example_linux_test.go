// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package goruntime_test

import (
	"fmt"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// Calibrate establishes the facts at the first call. Offset returns an error for facts it refused.
func ExampleCalibrate() {
	known := goruntime.Calibrate()
	_, unknown := known.Offset(goruntime.GGoid)
	fmt.Println("unknown:", unknown)

	other := make(chan uint64)
	go func() { other <- known.Goroutine().Goid }()
	fmt.Println("another goroutine:", <-other != known.Goroutine().Goid)
	// Output:
	// unknown: <nil>
	// another goroutine: true
}
