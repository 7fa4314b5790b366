// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package apmlib

import (
	"errors"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// tpidr returns the thread pointer, TPIDR_EL0. User code may read it, but it is set only on
// threads created by a C library.
func tpidr() uintptr

func threadPointer() (uintptr, error) { return tpidr(), nil }

// wordOfGo returns an error: threads that are not created by C have no thread-local storage.
func wordOfGo(*goruntime.Runtime) (wordLocation, error) {
	return wordLocation{}, errors.New("on arm64 threads have no thread-local storage without cgo: build with CGO_ENABLED=1")
}
