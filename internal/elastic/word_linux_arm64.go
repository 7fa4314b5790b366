// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package elastic

import (
	"errors"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// tpidr returns the thread pointer, TPIDR_EL0. Any thread may read the register, but only a C
// library sets it.
func tpidr() uintptr

func threadPointer() (uintptr, error) { return tpidr(), nil }

// wordOfGo returns an error: without a C library, threads have no thread-local storage.
func wordOfGo(*goruntime.Runtime) (wordLocation, error) {
	return wordLocation{}, errors.New("on arm64 threads have no thread-local storage without cgo: build with CGO_ENABLED=1")
}
