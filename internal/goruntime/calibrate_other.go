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

// Supported says whether calibration can find out anything on this platform.
const Supported = false

// getg is never called here: without calibration no offset is known to be applied to it.
func getg() unsafe.Pointer { return nil }

func gettid() uint32 { return 0 }

func calibrate() *Runtime {
	return new(Runtime).Without(fmt.Errorf("Calibrate on %s/%s: %w", runtime.GOOS, runtime.GOARCH, errors.ErrUnsupported))
}
