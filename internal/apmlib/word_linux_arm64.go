// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package apmlib

import (
	"errors"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// tpidr returns the thread pointer, TPIDR_EL0, which user code may read and only
// threads with a C library set.
func tpidr() uintptr

func threadPointer() (uintptr, error) { return tpidr(), nil }

// wordOfGo returns an error: without C threads have no thread-local storage.
func wordOfGo(*goruntime.Runtime) (place, error) {
	return place{}, errors.New("on arm64 threads have no thread-local storage without cgo: build with CGO_ENABLED=1")
}
