// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && gc && !android && (amd64 || arm64))

package goruntime

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Supported is true on platforms where calibration can establish facts.
const Supported = false

// getg returns nil, because this platform has no offsets to use with it.
func getg() unsafe.Pointer { return nil }

func gettid() uint32 { return 0 }

func calibrate() *Runtime {
	return new(Runtime).Without(fmt.Errorf("Calibrate on %s/%s: %w", runtime.GOOS, runtime.GOARCH, errors.ErrUnsupported))
}
