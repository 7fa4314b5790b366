// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package goruntime_test

import (
	"fmt"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// The first call of Calibrate establishes the facts. For a refused fact, Offset returns an error.
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
