// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package conformance

import "errors"

func kernelNamesMappings() bool { return false }

type namingCounter struct{}

func newNamingCounter([]int) *namingCounter { return &namingCounter{} }

func (*namingCounter) count() (int, error) { return 0, errors.ErrUnsupported }

func (*namingCounter) close() {}

func checkCounting() error { return errors.ErrUnsupported }
